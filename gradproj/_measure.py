"""The first of the three steps: measure the inner products that every method works from."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gradproj._arrays import (
    Array,
    Entered,
    check_alike,
    computing,
    enter,
    stack_on_host,
    to_host,
    widened,
)
from gradproj._blocks import WIDE_BLOCK, cuts, gram_and_product
from gradproj._products import TOLERANCE_32, TOLERANCE_64, Products, check_finite
from gradproj._ranges import only_zeros, unsafe_layers

# float32 gradients of up to this many numbers are measured and combined in float64. It takes no
# time for biases and norms, and many tasks in few dimensions are often nearly dependent.
SMALL = 1 << 10


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
    """Enter the (g, G) pair of each layer and return labels; raise if layers do not match."""
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
    unsafe = unsafe_layers(C, square, narrow)
    if narrow:
        for layer in np.flatnonzero(unsafe).tolist():
            if not wide[layer] and not only_zeros(xp, g[layer], G[layer], C[layer], square[layer]):
                wide[layer] = True
                again = _measure(xp, g[layer], G[layer], True)
                C[layer], h[layer], square[layer] = (to_host(x) for x in again)
        tolerance = np.where(wide, TOLERANCE_64, TOLERANCE_32)
    else:
        tolerance = np.full(len(wide), TOLERANCE_64)
    return Measured(Products(C, h, square, tolerance), wide, unsafe)


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
