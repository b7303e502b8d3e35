"""Second moments in low-rank form, for layers with too many inputs for a square matrix."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Real
from typing import Any

from gradproj._arrays import Array, check_array, computing, namespace
from gradproj._preserve.checks import check_finite, check_matrix, check_place
from gradproj._preserve.matrices import identity, narrow, transposed, wide


@dataclass(frozen=True, eq=False)  # arrays have no single answer to ==
class LowRankMoments:
    r"""Second moments by their leading directions, and one number for all other directions.

    .. math:: S \approx V^\top \operatorname{diag}(s)\, V + r\, (I - V^\top V)

    The trace of S, the mean squared length of the inputs, is kept exactly: r is the mean eigenvalue
    of the directions outside of V. Make one with ``InputMoments(rank=k).matrix()``.

    Moments of several tasks add up. The sum has the larger number of directions. A product with a
    number >= 0 scales them.

    Attributes
    ----------
    vectors : array (..., k, in)
        Orthonormal rows V.
    values : array (..., k)
        The eigenvalues s, in descending order.
    rest : array (...)
        The mean eigenvalue r of the other directions; a single number without leading axes.

    Examples
    --------
    >>> import numpy as np
    >>> import gradproj as gp
    >>> moments = gp.InputMoments(rank=1)
    >>> moments.update(np.asarray([[2.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]))
    >>> S = 3 * moments.matrix()
    >>> S.dense().round(6) + 0.0
    array([[4., 0., 0.],
           [0., 1., 0.],
           [0., 0., 1.]])
    >>> float(S.trace), float(S.mean_eigenvalue)
    (6.0, 2.0)
    >>> gp.preserve(np.ones((1, 3)), S, strength=1.0).round(6)
    array([[0.2, 0.5, 0.5]])
    """

    vectors: Array
    values: Array
    rest: Array

    # NumPy's numbers would otherwise multiply an array of objects.
    __array_ufunc__ = None

    @property
    def trace(self) -> Array:
        """The trace of S, one number per leading axis."""
        with computing(self.vectors, native=True):
            return _trace(self.vectors, self.values, self.rest)

    @property
    def mean_eigenvalue(self) -> Array:
        """The trace of S over the number of inputs."""
        with computing(self.vectors, native=True):
            return self.trace / max(self.vectors.shape[-1], 1)

    def dense(self) -> Array:
        """Return S as a matrix (..., in, in), for small sizes."""
        with computing(self.vectors, native=True):
            above = self.values - self.rest[..., None]
            S = transposed(self.vectors) @ (above[..., None] * self.vectors)
            return S + self.rest[..., None, None] * identity(S)

    def __add__(self, other: LowRankMoments) -> LowRankMoments:
        if not isinstance(other, LowRankMoments):
            return NotImplemented
        check_place("the second summand", other.vectors, "the first", self.vectors)
        mine, others = self.vectors.shape, other.vectors.shape
        if mine[:-2] != others[:-2] or mine[-1] != others[-1]:
            raise ValueError(
                f"the summands have vectors of shapes {tuple(mine)} and {tuple(others)}: expected "
                "the same number of inputs, so add moments of the same layer"
            )
        with computing(self.vectors, native=True):
            xp = namespace(self.vectors)
            V, s, r = wide_parts(self)
            W, t, q = wide_parts(other)
            wp = namespace(V)
            # S = Σ (s - r) vᵀv + r I for each summand.
            rows = wp.concat([V, W], axis=-2)
            above = wp.concat([s - r[..., None], t - q[..., None]], axis=-1)
            vectors, values = leading(rows, above, max(mine[-2], others[-2]))
            values = values + (r + q)[..., None]
            made = with_trace(vectors, values, _trace(V, s, r) + _trace(W, t, q))
            dtype = xp.result_type(self.vectors.dtype, other.vectors.dtype)
            return made._each(lambda x: narrow(x, self.vectors, dtype))

    def __mul__(self, factor: Any) -> LowRankMoments:
        if not isinstance(factor, Real):
            return NotImplemented
        scale, xp = float(factor), namespace(self.vectors)
        if not 0 <= scale < math.inf:
            raise ValueError(f"factor {factor!r} is invalid: expected a finite number >= 0")
        with computing(self.vectors, native=True):
            # NumPy turns an array without axes into a number.
            rest = xp.asarray(self.rest * scale)
            return LowRankMoments(self.vectors, self.values * scale, rest)

    __rmul__ = __mul__

    def _each(self, change: Callable[[Array], Array]) -> LowRankMoments:
        return LowRankMoments(change(self.vectors), change(self.values), change(self.rest))

    def __repr__(self) -> str:
        return f"LowRankMoments(vectors={tuple(self.vectors.shape)}, dtype={self.vectors.dtype})"


def leading(rows: Array, weights: Array, count: int) -> tuple[Array, Array]:
    """Return the leading eigenvectors as rows, and the eigenvalues, of rowsᵀ diag(weights) rows."""
    xp = namespace(rows)
    Q, R = xp.linalg.qr(transposed(rows))
    small = (R * weights[..., None, :]) @ transposed(R)
    values, vectors = xp.linalg.eigh((small + transposed(small)) / 2)
    values, vectors = xp.flip(values, axis=-1), xp.flip(vectors, axis=-1)
    count = min(count, values.shape[-1])
    return transposed(Q @ vectors[..., :count]), values[..., :count]


def with_trace(vectors: Array, values: Array, trace: Array) -> LowRankMoments:
    """Return moments with such a trace; rounding may not make the rest negative."""
    xp = namespace(values)
    k, n = vectors.shape[-2:]
    rest = (trace - xp.sum(values, axis=-1)) / max(n - k, 1)
    zero = xp.zeros_like(trace)
    rest = xp.where(rest > zero, rest, zero) if n > k else zero
    return LowRankMoments(vectors, values, rest)


def narrow_moments(S: Array | LowRankMoments, like: Array, dtype: Any) -> Any:
    """Round moments in float64 to a dtype, in the library and on the device of `like`."""
    if isinstance(S, LowRankMoments):
        return S._each(lambda x: narrow(x, like, dtype))
    return narrow(S, like, dtype)


def check_low_rank(name: str, S: LowRankMoments) -> None:
    """Raise unless the parts of hand-made moments fit together and are finite."""
    xp = check_matrix(f"{name}.vectors", S.vectors, "orthonormal rows (..., k, in)")
    shape = tuple(S.vectors.shape)
    for part, wanted in (("values", shape[:-1]), ("rest", shape[:-2])):
        found = getattr(S, part)
        check_array(f"{name}.{part}", found)
        check_place(f"{name}.{part}", found, f"{name}.vectors", S.vectors)
        if tuple(found.shape) != wanted:
            raise ValueError(
                f"{name}.{part} has shape {tuple(found.shape)} and {name}.vectors has {shape}: "
                f"expected {wanted}"
            )
        check_finite(xp, f"{name}.{part}", found)


def wide_parts(S: LowRankMoments) -> tuple[Array, Array, Array]:
    """Return vectors, values and rest in float64."""
    xp = namespace(S.vectors)
    return wide(xp, S.vectors), wide(xp, S.values), wide(xp, xp.asarray(S.rest))


def _trace(vectors: Array, values: Array, rest: Array) -> Array:
    k, n = vectors.shape[-2:]
    return namespace(values).sum(values, axis=-1) + (n - k) * rest
