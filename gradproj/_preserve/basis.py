"""The basis of the old inputs, and the rules by which it grows: GPM and SGP."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from gradproj._arrays import Array, computing, namespace, to_host
from gradproj._preserve.checks import (
    check_finite,
    check_matrix,
    check_orthonormal,
    check_place,
    within,
)
from gradproj._preserve.low_rank import LowRankMoments, check_low_rank, leading, wide_parts
from gradproj._preserve.matrices import (
    at_least_float32,
    eigenpairs,
    narrow,
    norm,
    resolution,
    transposed,
    wide,
)


@dataclass(frozen=True, eq=False)  # arrays have no single answer to ==
class InputBasis:
    r"""A basis of the directions that old inputs use, and how much each of them matters.

    .. math:: w = g - (g B^\top) \operatorname{diag}(v)\, B

    Attributes
    ----------
    vectors : array (k, in)
        Orthonormal rows B.
    importance : array (k,)
        The weights v in [0, 1]; all 1 for the orthogonal projection (GPM).

    Examples
    --------
    >>> import numpy as np
    >>> import gradproj as gp
    >>> half = gp.InputBasis(np.asarray([[1.0, 0.0]]), np.asarray([0.5]))
    >>> gp.preserve(np.asarray([[4.0, 4.0]]), basis=half)
    array([[2., 4.]])
    """

    vectors: Array
    importance: Array


def input_basis(
    S: Array | LowRankMoments,
    *,
    share: float = 0.97,
    basis: InputBasis | Array | None = None,
    scale: float | None = None,
) -> InputBasis:
    r"""Extend a basis of old inputs by the fewest directions that a new task's inputs need.

    .. math:: \min_{B'} k' \quad \text{s.t.} \quad \operatorname{tr}(B S B^\top) +
       \operatorname{tr}(B' S B'^\top) \ge \text{share} \cdot \operatorname{tr} S,
       \quad B' B'^\top = I_{k'}, \quad B B'^\top = 0

    The new rows B' are the leading eigenvectors of S outside of the old basis B. This is the rule
    of the GPM paper ("Gradient Projection Memory", Saha et al. 2021). Its released code keeps one
    direction fewer after the first task.

    With `scale` = α, each direction also gets an importance weight ("Scaled Gradient Projection",
    Saha and Roy 2023). With :math:`\sigma_i = \sqrt{b_i S b_i^\top}`, the size of the new task's
    inputs along direction i, the new task adds

    .. math:: v_i = \frac{(\alpha + 1)\, \sigma_i}{\alpha\, \sigma_i + \max_j \sigma_j}

    to the weight of each old direction, up to 1, and gives this weight to each new one.

    Parameters
    ----------
    S : array (in, in) or LowRankMoments
        Second moments of the inputs of the new task alone, for example ``moments.matrix()``.
    share : float
        The part of tr S, the mean squared length of the inputs, that the basis must hold; in
        [0, 1].
    basis : InputBasis or array (k, in), optional
        The basis of the earlier tasks. Its rows are kept.
    scale : float, optional
        SGP's α >= 0. Larger values bring all weights closer to 1. Default: all new directions get
        the weight 1, and the weights of the old ones stay.

    Returns
    -------
    InputBasis
        In the library and on the device of S.

    Examples
    --------
    >>> import numpy as np
    >>> import gradproj as gp
    >>> S = np.diag([9.0, 0.9, 0.1])
    >>> basis = gp.input_basis(S, share=0.95)
    >>> np.abs(basis.vectors)
    array([[1., 0., 0.],
           [0., 1., 0.]])
    >>> gp.input_basis(S, share=0.95, basis=basis).vectors.shape  # nothing new to keep
    (2, 3)
    >>> gp.input_basis(np.diag([4.0, 1.0]), share=1.0, scale=1.0).importance
    array([1.        , 0.66666667])
    """
    _check_options(share, scale)
    like = S.vectors if isinstance(S, LowRankMoments) else S
    with computing(like, native=True):
        xp = check_matrix("S", like, "a matrix (in, in)")
        epsilon = float(xp.finfo(like.dtype).eps)
        old, before = _old(basis, like)
        if isinstance(S, LowRankMoments):
            check_low_rank("S", S)
            if like.ndim != 2:
                raise ValueError(f"S.vectors has shape {tuple(like.shape)}: expected (k, in)")
            spectrum = _low_rank_spectrum(S, old, epsilon)
        else:
            if S.ndim != 2 or S.shape[0] != S.shape[1]:
                raise ValueError(f"S has shape {tuple(S.shape)}: expected a square matrix (in, in)")
            check_finite(xp, "S", S)
            spectrum = _spectrum(wide(xp, S), old, epsilon)
        old, new, sizes = _grown(spectrum, old, share, epsilon)
        importance = _importance(before, sizes, scale)
        dtype, wp = at_least_float32(xp, like.dtype), namespace(old)
        vectors = wp.concat([old, new])
        return InputBasis(narrow(vectors, like, dtype), narrow(importance, like, dtype))


def _old(basis: InputBasis | Array | None, like: Array) -> tuple[Array, Array]:
    """Return the old basis and its weights in float64."""
    if basis is None:
        none = wide(namespace(like), like[:0, :])
        return none, namespace(none).sum(none, axis=1)
    B = basis.vectors if isinstance(basis, InputBasis) else basis
    xp = check_matrix("basis", B, "a matrix (k, in) with orthonormal rows")
    check_place("basis", B, "S", like)
    if B.ndim != 2 or B.shape[1] != like.shape[1]:
        raise ValueError(
            f"basis has shape {tuple(B.shape)}: expected (k, {like.shape[1]}), as many columns as S"
        )
    check_orthonormal(xp, "basis", B)
    rows = wide(xp, B)
    if isinstance(basis, InputBasis):
        return rows, wide(xp, basis.importance)
    return rows, namespace(rows).ones_like(rows[:, 0])


@dataclass(frozen=True)
class _Spectrum:
    """The mean squares of the new task's inputs along the old rows and outside of them."""

    inside: Array  # one number per old row
    values: Array  # outside of the old rows, in descending order
    vectors: Array  # the direction of each value, one per row
    trace: Array  # the sum over all directions
    complete: bool = True  # whether `vectors` holds every direction that the inputs use


def _spectrum(S: Array, old: Array, epsilon: float) -> _Spectrum:
    xp = namespace(S)
    along = old @ S
    outside = S - transposed(old) @ along
    outside = outside - (outside @ transposed(old)) @ old
    values, vectors = eigenpairs(outside, norm(S), epsilon)
    inside = xp.sum(along * old, axis=1)
    rows = xp.flip(transposed(vectors), axis=0)
    return _Spectrum(inside, xp.flip(values), rows, xp.sum(xp.linalg.diagonal(S)))


def _low_rank_spectrum(S: LowRankMoments, old: Array, epsilon: float) -> _Spectrum:
    """Return the spectrum of low-rank moments, without directions outside of their vectors."""
    V, s, r = wide_parts(S)
    xp = namespace(V)
    along = old @ transposed(V)
    inside = xp.sum(along * along * (s - r), axis=1) + r
    outside = V - transposed(along) @ old
    vectors, values = leading(outside, s - r, V.shape[0])
    # Directions inside of the old basis leave only their rounding error here.
    noise = resolution(xp.sqrt(xp.sum(s * s)), epsilon)
    values = xp.where(values > noise, values + r, xp.zeros_like(values))
    k, n = V.shape
    trace = xp.sum(s) + (n - k) * r
    return _Spectrum(inside, values, vectors, trace, complete=not bool(r > noise))


def _grown(
    spectrum: _Spectrum, old: Array, share: float, epsilon: float
) -> tuple[Array, Array, Array]:
    """Return the old rows, the new rows, and the size of the inputs along all of them."""
    inside, values = spectrum.inside, spectrum.values
    xp = namespace(values)
    # The number of directions is chosen on the host, because it is the shape of the result.
    found = to_host(values)
    total = float(spectrum.trace)
    reached = float(xp.sum(inside)) + np.concatenate([[0.0], np.cumsum(found)])
    enough = reached >= share * total - epsilon * total
    if not (enough.any() or spectrum.complete):
        raise ValueError(
            f"share={share!r} needs more directions than S keeps (they hold "
            f"{reached[-1] / total:.3g}): pass a smaller share, or use InputMoments with a larger "
            "rank"
        )
    count = int(np.argmax(enough)) if enough.any() else len(found)
    count = min(count, int((found > 0).sum()), old.shape[1] - old.shape[0])
    new = spectrum.vectors[:count, :]
    if count and old.shape[0]:
        new = new - (new @ transposed(old)) @ old
        new = transposed(xp.linalg.qr(transposed(new))[0])
    sizes = xp.concat([inside, values[:count]])
    return old, new, xp.sqrt(xp.where(sizes > 0, sizes, xp.zeros_like(sizes)))


def _importance(before: Array, sizes: Array, scale: float | None) -> Array:
    """Return the weights after the new task."""
    xp = namespace(sizes)
    k = before.shape[0]
    if scale is None:
        return xp.concat([before, xp.ones_like(sizes[k:])])
    largest = float(xp.max(sizes)) if sizes.shape[0] else 0.0
    if largest == 0:
        return before
    added = (scale + 1) * sizes / (scale * sizes + largest)
    kept = before + added[:k]
    return xp.concat([xp.where(kept < 1, kept, xp.ones_like(kept)), added[k:]])


def _check_options(share: float, scale: float | None) -> None:
    if not within(share, 0, 1):
        raise ValueError(f"share={share!r} is invalid: expected a number in [0, 1]")
    if scale is not None and not (within(scale, 0, math.inf) and scale < math.inf):
        raise ValueError(f"scale={scale!r} is invalid: expected a finite number >= 0 or None")
