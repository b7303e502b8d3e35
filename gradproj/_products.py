"""The inner products of the gradients: all that a method sees of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gradproj._arrays import HostArray, as_numbers
from gradproj._errors import NotFiniteError

# Accuracy of the inner products, relative to the lengths of the two gradients. Measured on float32
# blocks: 1e-7 for normal numbers, up to 1e-5 for rows with few distinct values, whose rounding
# errors all have the same sign (tests/core/test_products.py).
TOLERANCE_64 = 1e-13
TOLERANCE_32 = 2e-5


@dataclass(frozen=True, eq=False)  # arrays have no single answer to ==
class Products:
    r"""Inner products of the gradients, for one problem or for a batch of L layers.

    .. math:: C = G G^\top, \qquad h = G g, \qquad \|g\|^2

    They add up: if the N parameters are split over shards, machines or batches of columns, the
    products of the parts add up to the products of the whole.

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
        C, h = as_numbers("C", self.C), as_numbers("h", self.h)
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
    found = as_numbers(name, value)
    if found.shape == h.shape[:-1]:
        return found
    if found.shape != ():
        raise ValueError(
            f"{name} has shape {found.shape} and h has shape {h.shape}: expected one number per "
            "layer"
        )
    return np.full(h.shape[:-1], found)


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
