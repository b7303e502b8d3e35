"""The forms in which the operator w = g M is kept, and how each of them is computed."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from gradproj._arrays import Array, SameArray, check_array, is_plain, namespace
from gradproj._preserve.basis import InputBasis
from gradproj._preserve.checks import check_place
from gradproj._preserve.low_rank import LowRankMoments, narrow_moments, with_trace
from gradproj._preserve.matrices import (
    eigenpairs,
    identity,
    is_positive_definite,
    narrow,
    nonnegative,
    norm,
    resolution,
    transposed,
    wide,
)

# The inverse of I + λS is five to ten times faster than the eigenvalues. It is used as long as its
# error, up to the squared condition number times the rounding unit of its dtype, stays below this
# multiple of the rounding unit of the update, and λ times the resolution of S below the second.
_SAFE_ERROR = 10.0
_HARMLESS = 1e-3


@dataclass(frozen=True)
class Dense:
    """w = g M."""

    matrix: Array

    @property
    def like(self) -> Array:
        """An array with the leading axes, the inputs, the dtype and the device of the operator."""
        return self.matrix

    def apply(self, g: Array) -> Array:
        """Return w."""
        return g @ self.matrix


@dataclass(frozen=True)
class Diagonal:
    """w = g diag(factors)."""

    factors: Array

    @property
    def like(self) -> Array:
        """See :class:`Dense`."""
        return self.factors[None, :]

    def apply(self, g: Array) -> Array:
        """Return w."""
        return g * self.factors


@dataclass(frozen=True)
class Factored:
    """w = r g + (g Vᵀ) diag(weights) V, with r = 1 unless given."""

    vectors: Array
    weights: Array
    rest: Array | None = None

    @property
    def like(self) -> Array:
        """See :class:`Dense`."""
        return self.vectors

    def apply(self, g: Array) -> Array:
        """Return w."""
        inside = (g @ transposed(self.vectors)) * self.weights[..., None, :]
        outside = g if self.rest is None else self.rest[..., None, None] * g
        return outside + inside @ self.vectors


Form = Dense | Diagonal | Factored


def soft(S: Array, strength: float, dtype: Any) -> Dense:
    """Return the operator (I + λS)⁻¹ for a matrix S."""
    xp = namespace(S)
    given, wanted = (float(xp.finfo(x).eps) for x in (S.dtype, dtype))
    inverse = _inverse(wide(xp, S), strength, given, wanted)
    return Dense(narrow(inverse, S, dtype))


def soft_diagonal(s: Array, strength: float, dtype: Any) -> Diagonal:
    """Return the operator for a diagonal S; its zeros are exact."""
    values = wide(namespace(s), s)
    xp = namespace(values)
    if s.shape[0] and float(xp.min(values)) < 0:
        raise ValueError(f"S has the entry {float(xp.min(values)):.2g}: expected a diagonal >= 0")
    return Diagonal(narrow(_kept(values, strength), s, dtype))


def soft_low_rank(S: LowRankMoments, strength: float, dtype: Any, epsilon: float) -> Factored:
    """Return the operator in factored form; `epsilon` is the rounding that is in S.

    It is (g − gVᵀV) / (1 + λr) + gVᵀ diag(1 / (1 + λs)) V for the mean eigenvalue r of the rest.
    """
    given = namespace(S.vectors)
    s, r = wide(given, S.values), wide(given, given.asarray(S.rest))
    xp = namespace(s)
    k, n = S.vectors.shape[-2:]
    size = xp.sqrt(xp.sum(s * s, axis=-1) + (n - k) * r * r)
    inside = _kept(nonnegative(s, size, epsilon), strength)
    outside = _kept(nonnegative(r[..., None], size, epsilon), strength)
    weights, rest = (narrow(x, S.vectors, dtype) for x in (inside - outside, outside[..., 0]))
    return Factored(given.astype(S.vectors, dtype, copy=False), weights, rest)


def truncated(S: Array, rank: int, dtype: Any) -> LowRankMoments:
    """Return the leading directions of a matrix S."""
    xp = namespace(S)
    moments = wide(xp, S)
    wp = namespace(moments)
    values, vectors = eigenpairs(moments, norm(moments), float(xp.finfo(S.dtype).eps))
    rank = min(rank, S.shape[-1])
    found = with_trace(
        transposed(wp.flip(vectors, axis=-1)[..., :rank]),
        wp.flip(values, axis=-1)[..., :rank],
        wp.sum(wp.linalg.diagonal(moments), axis=-1),
    )
    rounded: LowRankMoments = narrow_moments(found, S, dtype)
    return rounded


def hard(basis: InputBasis, dtype: Any) -> Dense | Factored:
    """Return the operator that removes a basis, in the form that takes fewer products."""
    B = basis.vectors
    xp = namespace(B)
    k, n = B.shape[-2:]
    if 2 * k < n:
        weights = -xp.astype(basis.importance, dtype)
        return Factored(xp.astype(B, dtype, copy=False), weights)
    rows, weights = wide(xp, B), wide(xp, basis.importance)
    removed = transposed(rows) @ (weights[..., None] * rows)
    return Dense(narrow(identity(removed) - removed, B, dtype))


def _kept(values: Array, strength: float) -> Array:
    """Return 1 / (1 + λs), or 1 for zeros and 0 for the others if λ is infinite."""
    if strength == math.inf:
        return namespace(values).astype(values <= 0, values.dtype)
    return 1 / (1 + strength * values)


def _inverse(S: Array, strength: float, epsilon: float, wanted: float) -> Array:
    """Return (I + λS)⁻¹ in float64, or the projector onto the null space of S for λ = ∞.

    `epsilon` is the rounding unit of the given S, `wanted` that of the update.
    """
    xp = namespace(S)
    if 0 in S.shape:
        return S
    S = (S + transposed(S)) / 2
    noise = resolution(norm(S), epsilon)
    condition = 1 + strength * float(xp.max(norm(S)))
    error = condition * condition * float(xp.finfo(S.dtype).eps)
    if strength * float(xp.max(noise)) <= _HARMLESS and error <= _SAFE_ERROR * wanted:
        # I + λS may be positive definite with a negative eigenvalue of S. A zero S has no noise.
        shift = xp.where(noise > 0, noise, xp.ones_like(noise))[..., None, None]
        if is_positive_definite(S + shift * identity(S)):
            M = xp.linalg.inv(identity(S) + strength * S)
            return (M + transposed(M)) / 2
    values, vectors = eigenpairs(S, norm(S), epsilon)
    return (vectors * _kept(values, strength)[..., None, :]) @ transposed(vectors)


def written(w: SameArray, g: Array, out: SameArray) -> SameArray:
    """Write an update to `out` and return it."""
    target: Any = out
    if not is_plain(target, g):
        check_array("out", target)
        check_place("out", target, "g", g)
    if target.dtype != g.dtype or target.shape != g.shape:
        raise ValueError(
            f"out has shape {tuple(target.shape)} and dtype {target.dtype}: expected those of g, "
            f"{tuple(g.shape)} and {g.dtype}"
        )
    try:
        target[...] = w
    except (TypeError, np.exceptions.AxisError) as error:
        raise TypeError(f"out cannot be written to: {error}") from error
    return out
