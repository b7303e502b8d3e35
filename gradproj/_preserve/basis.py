"""The basis of the old inputs, and the rules by which it grows: GPM and SGP."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from gradproj._arrays import Array, computing, namespace, to_host
from gradproj._preserve.matrices import (
    at_least_float32,
    check_finite,
    check_matrix,
    check_place,
    eigenpairs,
    identity,
    narrow,
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
    S: Array,
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
    S : array (in, in)
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
    with computing(S, native=True):
        xp = check_matrix("S", S, "a matrix (in, in)")
        if S.ndim != 2 or S.shape[0] != S.shape[1]:
            raise ValueError(f"S has shape {tuple(S.shape)}: expected a square matrix (in, in)")
        check_finite(xp, "S", S)
        dtype = at_least_float32(xp, S.dtype)
        moments = wide(xp, S)
        old, before = _old(basis, S, moments)
        old, new, sizes = _grown(moments, old, share, float(xp.finfo(S.dtype).eps))
        importance = _importance(before, sizes, scale)
        wp = namespace(moments)
        return InputBasis(narrow(wp.concat([old, new]), S, dtype), narrow(importance, S, dtype))


def _old(basis: InputBasis | Array | None, S: Array, moments: Array) -> tuple[Array, Array]:
    """Return the old basis and its weights in float64."""
    if basis is None:
        return moments[:0, :], moments[0, :0]
    B = basis.vectors if isinstance(basis, InputBasis) else basis
    xp = check_matrix("basis", B, "a matrix (k, in) with orthonormal rows")
    check_place("basis", B, "S", S)
    if B.ndim != 2 or B.shape[1] != S.shape[1]:
        raise ValueError(
            f"basis has shape {tuple(B.shape)}: expected (k, {S.shape[1]}), as many columns as S"
        )
    check_orthonormal(xp, B)
    rows = wide(xp, B)
    if isinstance(basis, InputBasis):
        return rows, wide(xp, basis.importance)
    return rows, namespace(rows).ones_like(rows[:, 0])


def _grown(S: Array, old: Array, share: float, epsilon: float) -> tuple[Array, Array, Array]:
    """Return the old rows, the new rows, and the size of the inputs along all of them."""
    xp = namespace(S)
    along = old @ S
    outside = S - transposed(old) @ along
    outside = outside - (outside @ transposed(old)) @ old
    values, vectors = eigenpairs(outside, resolution(S, epsilon))
    inside = xp.sum(along * old, axis=1)
    # The choice of a size is made on the host: it is the shape of the result.
    found = to_host(values)[::-1]
    total = float(xp.sum(xp.linalg.diagonal(S)))
    reached = float(xp.sum(inside)) + np.concatenate([[0.0], np.cumsum(found)])
    needed = share * total - epsilon * total
    count = int(np.argmax(reached >= needed)) if (reached >= needed).any() else len(found)
    count = min(count, int((found > 0).sum()), S.shape[0] - old.shape[0])
    new = xp.flip(transposed(vectors), axis=0)[:count, :]
    if count and old.shape[0]:
        new = new - (new @ transposed(old)) @ old
        new = transposed(xp.linalg.qr(transposed(new))[0])
    sizes = xp.concat([inside, xp.flip(values)[:count]])
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


def check_orthonormal(xp: Any, B: Array) -> None:
    """Raise unless the rows of B are finite and orthonormal, up to the rounding of its dtype."""
    check_finite(xp, "basis", B)
    if not B.shape[-2]:
        return
    rows = wide(xp, B)
    product = rows @ transposed(rows)
    worst = float(namespace(rows).max(namespace(rows).abs(product - identity(product))))
    if worst > float(xp.finfo(B.dtype).eps) ** 0.5:
        raise ValueError(
            f"basis has rows that are not orthonormal (B Bᵀ differs from the identity by "
            f"{worst:.1g}): pass gp.input_basis(S) or gp.gram_schmidt(B)"
        )


def _check_options(share: float, scale: float | None) -> None:
    if not 0 <= share <= 1:
        raise ValueError(f"share={share!r} is invalid: expected a number in [0, 1]")
    if scale is not None and not 0 <= scale < math.inf:
        raise ValueError(f"scale={scale!r} is invalid: expected a finite number >= 0 or None")
