"""The first of the three steps: measure the inner products that every method works from."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gradproj._arrays import (
    Array,
    Entered,
    HostArray,
    check_alike,
    computing,
    enter,
    stack_on_host,
    to_host,
    widened,
)
from gradproj._blocks import WIDE_BLOCK, cuts, gram_and_product
from gradproj._errors import NotFiniteError

# Accuracy of the inner products, relative to the lengths of the two gradients. Measured on float32
# blocks: 1e-7 for normal numbers, up to 1e-5 for rows with few distinct values, whose rounding
# errors all have the same sign (tests/core/test_products.py).
TOLERANCE_64 = 1e-13
TOLERANCE_32 = 2e-5

# float32 gradients of up to this many numbers are measured and combined in float64. It takes no
# time for biases and norms, and many tasks in few dimensions are often nearly dependent.
SMALL = 1 << 10

# Squared norms outside these ranges are too close to overflow or to the subnormal numbers.
_SAFE_32 = (1e-24, 1e36)
_SAFE_64 = (1e-280, 1e280)
# Numbers below 2 to this power, and above 2 to its negative, have squares that fit into float64.
_EXPONENT = 400


@dataclass(frozen=True, eq=False)  # arrays have no single answer to ==
class Products:
    r"""Inner products of the gradients, for one problem or for a batch of L layers.

    .. math:: C = G G^\top, \qquad h = G g, \qquad \|g\|^2

    They add up: if the N parameters are split over shards, machines or batches of columns, the sum
    of the parts' products are the products of the whole.

    Attributes
    ----------
    C : numpy.ndarray (T, T) or (L, T, T)
        Inner products of the old gradients.
    h : numpy.ndarray (T,) or (L, T)
        Inner products of the old gradients with the new one.
    square : numpy.ndarray () or (L,)
        Squared norm of the new gradient; NaN if it is not known.
    tolerance : numpy.ndarray () or (L,)
        Accuracy of an inner product relative to the lengths of its two gradients. The default is
        for products that were formed in float64.

    Examples
    --------
    Two shards of one layer:

    >>> import numpy as np
    >>> import gradproj as gp
    >>> g, G = np.asarray([1.0, 0.0, 2.0]), np.asarray([[0.0, 2.0, 1.0]])
    >>> whole = gp.measure(g[:2], G[:, :2]) + gp.measure(g[2:], G[:, 2:])
    >>> whole.C, whole.h, whole.square
    (array([[5.]]), array([2.]), array(5.))

    Inner products from elsewhere:

    >>> gp.AGEM().solve(gp.Products(C=[[4.0]], h=[-2.0])).coefficients
    array([0.5])
    """

    C: HostArray
    h: HostArray
    square: HostArray = None  # type: ignore[assignment]  # NaN, below
    tolerance: HostArray = TOLERANCE_64  # type: ignore[assignment]

    def __post_init__(self) -> None:
        C, h = np.asarray(self.C, dtype=np.float64), np.asarray(self.h, dtype=np.float64)
        if h.ndim not in (1, 2) or C.shape != (*h.shape, h.shape[-1]):
            raise ValueError(
                f"C has shape {C.shape} and h has shape {h.shape}: expected (T, T) and (T,), or "
                "(L, T, T) and (L, T)"
            )
        square = _per_layer("square", np.nan if self.square is None else self.square, h)
        tolerance = _per_layer("tolerance", self.tolerance, h)
        if not (tolerance.min(initial=0.0) >= 0 and tolerance.max(initial=0.0) < 1):
            raise ValueError(f"tolerance={self.tolerance!r} is invalid: expected numbers in [0, 1)")
        for name, value in (("C", C), ("h", h), ("square", square), ("tolerance", tolerance)):
            object.__setattr__(self, name, value)

    def __add__(self, other: Products) -> Products:
        """Add the products of two shards of the same layers and tasks."""
        if not isinstance(other, Products):
            return NotImplemented
        if self.h.shape != other.h.shape:
            raise ValueError(
                f"cannot add products with h of shape {self.h.shape} and {other.h.shape}: both "
                "must have the same layers and tasks"
            )
        return Products(
            self.C + other.C,
            self.h + other.h,
            self.square + other.square,
            np.maximum(self.tolerance, other.tolerance),
        )

    def __getitem__(self, layers: Any) -> Products:
        """Return the products of one layer or of some layers of a batch."""
        return Products(self.C[layers], self.h[layers], self.square[layers], self.tolerance[layers])

    @property
    def lengths(self) -> HostArray:
        """Length of each old gradient, (T,) or (L, T)."""
        return np.sqrt(np.maximum(np.diagonal(self.C, axis1=-2, axis2=-1), 0.0))

    @property
    def finite(self) -> npt.NDArray[np.bool_]:
        """Whether no product contains NaN or infinity, () or (L,). `square` may be unknown."""
        return np.asarray(np.isfinite(self.C).all((-2, -1)) & np.isfinite(self.h).all(-1))


def _per_layer(name: str, value: npt.ArrayLike, h: HostArray) -> HostArray:
    """Return one number per layer."""
    found = np.asarray(value, dtype=np.float64)
    if found.shape == h.shape[:-1]:
        return found
    if found.shape != ():
        raise ValueError(
            f"{name} has shape {found.shape} and h has shape {h.shape}: expected one number per "
            "layer"
        )
    return np.full(h.shape[:-1], found)


def measure(g: Array, G: Array, *, precise: bool = True) -> Products:
    r"""Measure the inner products that every method works from.

    .. math:: C = G G^\top \in \mathbb{R}^{T \times T}, \qquad h = G g \in \mathbb{R}^T,
       \qquad \|g\|^2

    This is the first of the three steps measure, :meth:`Method.solve` and :func:`combine`. They are
    for gradients that are not in one place: inner products add up, so gradients that are sharded
    over machines are measured shard by shard, and only these T·(T+1) + 1 numbers are summed.

    Parameters
    ----------
    g : array (N,)
        Gradient of the new task.
    G : array (T, N)
        Gradients of the old tasks, one per row.
    precise : bool
        Form the products of float32 gradients in float64. Without it they take half the time, and
        ``products.tolerance`` says how accurate they are.

    Returns
    -------
    Products
        In float64 and on the host, whatever the library and device of the gradients.

    Examples
    --------
    >>> import numpy as np
    >>> import gradproj as gp
    >>> products = gp.measure(np.asarray([1.0, 0.0]), np.asarray([[0.0, 2.0], [-1.0, 1.0]]))
    >>> products.C
    array([[4., 2.],
           [2., 2.]])
    >>> products.h
    array([ 0., -1.])
    """
    with computing(g):
        pair = enter({"g": g, "G": G})
        wide = wide_layers(pair.xp, pair.arrays[:1], precise)
        products = measure_entered(pair.xp, pair.arrays[:1], pair.arrays[1:], wide).products
    check_finite(products, [""])
    return products[0]


def measure_layers(
    g: Iterable[Array], G: Iterable[Array], *, precise: bool = False, check: bool = True
) -> Products:
    r"""Measure the inner products of each layer on its own.

    .. math:: C^{(l)} = G^{(l)} G^{(l)\top}, \qquad h^{(l)} = G^{(l)} g^{(l)},
       \qquad \|g^{(l)}\|^2, \qquad l = 1, \dots, L

    Parameters
    ----------
    g : iterable of arrays (N_l,)
        Gradient of the new task, layer by layer.
    G : iterable of arrays (T, N_l)
        Gradients of the old tasks, layer by layer; views of one large buffer are fine.
    precise : bool
        As in :func:`measure`. Layers of up to 1,024 numbers are measured in float64 in any case.
    check : bool
        Raise :class:`NotFiniteError` for a layer with NaN or infinity. Without it such layers have
        NaN or infinite products, which ``products.finite`` reports.

    Returns
    -------
    Products
        With a leading layer axis.

    Examples
    --------
    >>> import numpy as np
    >>> import gradproj as gp
    >>> g = [np.asarray([1.0, 0.0]), np.asarray([3.0])]
    >>> G = [np.asarray([[-1.0, 1.0]]), np.asarray([[2.0]])]
    >>> gp.measure_layers(g, G).h
    array([[-1.],
           [ 6.]])
    """
    g, G = list(g), list(G)
    with computing(g[0] if g else None):
        layers, labels = enter_layers(g, G)
        if not layers:
            return Products(np.zeros((0, 0, 0)), np.zeros((0, 0)))
        new, old = ([layer.arrays[k] for layer in layers] for k in (0, 1))
        wide = wide_layers(layers[0].xp, new, precise)
        products = measure_entered(layers[0].xp, new, old, wide).products
    if check:
        check_finite(products, labels)
    return products


def enter_layers(g: Sequence[Array], G: Sequence[Array]) -> tuple[list[Entered], list[str]]:
    """Enter the (g, G) pair of each layer; raise unless all layers are alike. Return the labels."""
    if len(g) != len(G):
        raise ValueError(f"g has {len(g)} layers and G has {len(G)}: expected one G per g")
    labels = [f"[{layer}]" for layer in range(len(g))]
    layers = [
        enter({f"g{label}": g_l, f"G{label}": G_l})
        for label, g_l, G_l in zip(labels, g, G, strict=True)
    ]
    for label, g_l, G_l in zip(labels[1:], g[1:], G[1:], strict=True):
        check_alike(("g[0]", f"g{label}"), (g[0], g_l))
        if G_l.shape[0] != G[0].shape[0]:
            raise ValueError(
                f"G{label} has {G_l.shape[0]} rows and G[0] has {G[0].shape[0]}: every layer must "
                "have one row per old task"
            )
    return layers, labels


def wide_layers(xp: Any, g: Sequence[Array], precise: bool) -> list[bool]:
    """Return which layers are measured and combined in float64 although they are not stored so."""
    return [g_l.dtype != xp.float64 and (precise or g_l.shape[0] <= SMALL) for g_l in g]


class Measured(NamedTuple):
    """The products of layers, not checked for NaN or infinity."""

    products: Products
    wide: list[bool]  # layers that were measured in float64
    unsafe: npt.NDArray[np.bool_]  # layers with a squared norm that is zero or hardly fits; or NaN


def measure_entered(
    xp: Any, g: Sequence[Array], G: Sequence[Array], wide: Sequence[bool]
) -> Measured:
    """Measure layers that have been entered; again in float64 where float32 squares do not fit."""
    wide = list(wide)
    parts = [_measure(xp, *each) for each in zip(g, G, wide, strict=True)]
    C, h, square = (stack_on_host(xp, each) for each in zip(*parts, strict=True))
    narrow = g[0].dtype != xp.float64
    unsafe = _unsafe(C, square, _SAFE_32 if narrow else _SAFE_64)
    if narrow:
        for layer in np.flatnonzero(unsafe).tolist():
            if not wide[layer] and not _only_zeros(xp, g[layer], G[layer], C[layer], square[layer]):
                wide[layer] = True
                again = _measure(xp, g[layer], G[layer], True)
                C[layer], h[layer], square[layer] = (to_host(x) for x in again)
        tolerance = np.where(wide, TOLERANCE_64, TOLERANCE_32)
    else:
        tolerance = np.full(len(wide), TOLERANCE_64)
    return Measured(Products(C, h, square, tolerance), wide, unsafe)


def fitting_factors(
    xp: Any, g: Sequence[Array], G: Sequence[Array], unsafe: npt.NDArray[np.bool_]
) -> list[float] | None:
    """Return powers of two by which to multiply each layer whose squares do not fit into float64.

    A common factor of g and G leaves the coefficients of every method as they are. None if all
    layers fit, as they nearly always do.
    """
    if g[0].dtype != xp.float64:  # squares of smaller dtypes always fit
        return None
    factors = [1.0] * len(g)
    for layer in np.flatnonzero(unsafe).tolist():
        sizes = [_largest(xp, x) for x in (g[layer], G[layer])]
        if all(np.isfinite(sizes)) and any(sizes):
            exponents = [math.frexp(size)[1] for size in sizes if size]
            if any(abs(exponent) > _EXPONENT for exponent in exponents):
                factors[layer] = math.ldexp(1.0, -round(sum(exponents) / len(exponents)))
    return factors if any(factor != 1 for factor in factors) else None


def _measure(xp: Any, g: Array, G: Array, wide: bool) -> tuple[Array, Array, Array]:
    """Return C, h and ‖g‖² of one layer, block by block."""
    total = None
    T, N = G.shape
    for cut in cuts(xp, T, N, WIDE_BLOCK) if wide else cuts(xp, T, N):
        rows, new = G[:, cut], g[cut]
        if wide:
            rows, new = widened(xp, rows), widened(xp, new)
        part = gram_and_product(np if isinstance(rows, np.ndarray) else xp, rows, new)
        total = part if total is None else tuple(a + b for a, b in zip(total, part, strict=True))
    assert total is not None  # there is at least one block
    return total


def _unsafe(C: HostArray, square: HostArray, safe: tuple[float, float]) -> npt.NDArray[np.bool_]:
    """Return which layers have a squared norm outside of the range. NaN counts as outside."""
    sizes = np.concatenate([np.diagonal(C, axis1=1, axis2=2), square[:, None]], axis=1)
    low, high = safe
    if sizes.min(initial=1.0) > low and sizes.max(initial=1.0) < high:  # false for NaN
        return np.zeros(len(C), bool)
    return np.asarray(~((sizes > low) & (sizes < high)).all(1))


def _only_zeros(xp: Any, g: Array, G: Array, C: HostArray, square: float) -> bool:
    """Whether only gradients that are exactly zero, as for unused heads, left the safe range."""
    low, high = _SAFE_32
    sizes = np.append(np.diagonal(C), square)
    if not ((sizes == 0) | ((sizes > low) & (sizes < high))).all():
        return False
    rows = [G[int(row), :] if row < len(C) else g for row in np.flatnonzero(sizes == 0)]
    return not any(bool(xp.any(row != 0)) for row in rows)


def _largest(xp: Any, x: Array) -> float:
    """Return the largest absolute value, 0 for an empty array."""
    return float(xp.max(xp.abs(x))) if math.prod(x.shape) else 0.0


def check_finite(products: Products, labels: Sequence[str]) -> None:
    """Raise for the first layer whose products are not finite: no extra pass over the gradients.

    NaN or infinity in row i of G shows in C[i, i], and in g it shows in ‖g‖².
    """
    if np.isfinite(products.C.sum() + products.h.sum() + products.square.sum()):
        return
    squares = np.diagonal(products.C, axis1=1, axis2=2)
    for layer, label in enumerate(labels):
        rows = np.flatnonzero(~np.isfinite(squares[layer]))
        if len(rows):
            raise _not_finite(f"G{label} (row {rows[0]})")
        if not np.isfinite(products.square[layer]):
            raise _not_finite(f"g{label}")
    if not products.finite.all():  # rows and g fit, but not their products
        raise _not_finite(f"the product of G and g{labels[int(products.finite.argmin())]}")


def _not_finite(name: str) -> NotFiniteError:
    return NotFiniteError(
        f"{name} contains NaN or infinity: skip this step, or lower the learning rate or the loss "
        "scale. Gradients whose squares overflow count as infinite here"
    )
