"""The explicit road, first half: decompose the old gradients and build an orthonormal basis."""

from __future__ import annotations

from typing import Any

import numpy as np

from gradproj._arrays import Array, SameArray, bits, check_array, device, full_precision, namespace
from gradproj._errors import NotFiniteError


def decompose(G: Array) -> tuple[Array, Array]:
    r"""Split the old tasks' gradients into what they share and what is each one's own.

    .. math:: \bar g = \arg\min_m \sum_i \|g_i - m\|^2 = \tfrac1T \sum_i g_i,
       \qquad \hat g_i = g_i - \bar g

    Parameters
    ----------
    G : array (T, N)
        Gradients of the old tasks, one a row.

    Returns
    -------
    shared : array (N,)
        The shared gradient :math:`\bar g`.
    specific : array (T, N)
        The task-specific gradients :math:`\hat g_i`; they sum to zero. A row that is nothing but
        the rounding error of its subtraction is set to zero.

    Examples
    --------
    >>> import numpy as np
    >>> import gradproj as gp
    >>> shared, specific = gp.decompose(np.asarray([[1.0, 2.0], [3.0, 2.0]]))
    >>> shared
    array([2., 2.])
    >>> specific
    array([[-1.,  0.],
           [ 1.,  0.]])
    """
    xp, G, dtype = _enter("G", G, 2)
    T = G.shape[0]
    if T == 0:
        raise ValueError("G has no rows: without an old task there is nothing to decompose")
    with np.errstate(over="ignore", invalid="ignore"):
        shared = xp.mean(G, axis=0)
        specific = G - shared
        fits = xp.all(xp.isfinite(xp.astype(specific, dtype)))
    if not bool(fits):
        raise NotFiniteError("G holds numbers too large to be added up: lower the loss scale")
    noise = T * float(xp.finfo(G.dtype).eps) * xp.max(lengths(xp, G))
    specific = xp.where((lengths(xp, specific) > noise)[:, None], specific, xp.zeros_like(specific))
    return xp.astype(shared, dtype), xp.astype(specific, dtype)


def gram_schmidt(
    H: SameArray, *, tolerance: float | None = None, scale: float | None = None
) -> SameArray:
    r"""Build an orthonormal basis of the rows' span by the Gram–Schmidt process.

    .. math:: b_k = \frac{r_k}{\|r_k\|}, \qquad
       r_k = h_k - \sum_{j<k} \langle b_j, h_k \rangle b_j

    The longest remainder goes first and each direction is orthogonalised twice, so that the basis
    is orthonormal to rounding and ends where the numerical rank does.

    Parameters
    ----------
    H : array (T, N)
        The vectors, one a row: the task-specific gradients, or the first or last K of them.
    tolerance : float, optional
        A remainder shorter than ``tolerance * scale`` counts as zero. Default: 10 T times the
        dtype's rounding unit.
    scale : float, optional
        Default: the longest row of `H`. Where `H` is a small difference of long vectors, their
        length is the better scale.

    Returns
    -------
    B : array (r, N)
        Orthonormal rows; r = 0 if all of `H` is zero.

    Examples
    --------
    >>> import numpy as np
    >>> import gradproj as gp
    >>> gp.gram_schmidt(np.asarray([[3.0, 0.0, 4.0], [-3.0, 0.0, -4.0]]))
    array([[0.6, 0. , 0.8]])
    """
    xp, rows, dtype = _enter("H", H, 2)
    _check_size("tolerance", tolerance)
    _check_size("scale", scale)
    T, N = rows.shape
    left = xp.asarray(rows, copy=True)
    basis = xp.zeros((0, N), dtype=rows.dtype, device=device(rows))
    length = lengths(xp, left)
    if scale is None:
        scale = float(xp.max(length)) if T else 0.0
    if tolerance is None:
        tolerance = 10 * T * float(xp.finfo(rows.dtype).eps)
    with full_precision(rows):
        for _ in range(min(T, N)):
            k = int(xp.argmax(length))
            size = float(length[k])
            if size <= tolerance * scale:
                break
            b = left[k, :] / size
            b = b - (basis @ b) @ basis
            rest = lengths(xp, b[None, :])[0]
            if float(rest) < 0.5:  # rounding, most of it along the basis, whatever the tolerance
                break
            b = b / rest
            b = b - (basis @ b) @ basis
            b = b / lengths(xp, b[None, :])[0]
            basis = xp.concat([basis, b[None, :]])
            left = left - (left @ b)[:, None] * b
            length = lengths(xp, left)
    made: SameArray = xp.astype(basis, dtype)
    return made


def principal_components(
    H: SameArray, k: int | float | None = None, *, tolerance: float | None = None
) -> SameArray:
    r"""Find the k directions that hold most of the rows' variance.

    .. math:: B = \arg\max_{B B^\top = I_k} \|H B^\top\|_F^2

    `H` is taken as it is: the task-specific gradients are centred already. The rows of B are the
    leading right singular vectors of `H`.

    Parameters
    ----------
    H : array (T, N)
        The task-specific gradients, one a row.
    k : int, float or None
        How many directions; a float in (0, 1) for as few as hold that share of the variance; None
        for all. Never more than the numerical rank: a direction beyond it would be noise.
    tolerance : float, optional
        Singular values below ``tolerance`` times the largest count as zero. Default: 10 T times the
        dtype's rounding unit.

    Returns
    -------
    B : array (min(k, rank), N)
        Orthonormal rows, most variance first.

    Examples
    --------
    >>> import numpy as np
    >>> import gradproj as gp
    >>> B = gp.principal_components(np.asarray([[2.0, 0.0], [-2.0, 0.0], [0.0, 1.0]]), 1)
    >>> np.abs(B)
    array([[1., 0.]])
    """
    xp, rows, dtype = _enter("H", H, 2)
    T, N = rows.shape
    if not is_rank(k):
        raise ValueError(f"k={k!r}: it should be None, an integer from 0 on, or a float in (0, 1)")
    _check_size("tolerance", tolerance)
    made: SameArray
    if min(T, N) == 0:
        made = xp.zeros((0, N), dtype=dtype, device=device(rows))
        return made
    _, values, directions = xp.linalg.svd(rows, full_matrices=False)
    if tolerance is None:
        tolerance = 10 * T * float(xp.finfo(rows.dtype).eps)
    sizes = [float(value) for value in values]
    rank = sum(size > tolerance * sizes[0] for size in sizes)
    if isinstance(k, float | np.floating):
        variance = [(size / sizes[0]) ** 2 for size in sizes[:rank]]
        k = sum(sum(variance[:j]) < k * sum(variance) for j in range(rank))
    made = xp.astype(directions[: rank if k is None else min(k, rank), :], dtype)
    return made


def is_rank(k: object) -> bool:
    """Whether it says how many directions to take: all (None), a number, or a share."""
    if isinstance(k, float | np.floating):
        return bool(0 < k < 1)
    is_count = isinstance(k, int | np.integer) and not isinstance(k, bool) and k >= 0
    return k is None or bool(is_count)


def _check_size(name: str, value: float | None) -> None:
    """Raise unless the option is left out or a finite number from 0 on."""
    if value is not None and not 0 <= value < np.inf:
        raise ValueError(f"{name}={value!r}: it should be a finite number from 0 on")


def lengths(xp: Any, H: Array) -> Array:
    """Return the norm of each row, safe from overflow and underflow at any scale."""
    if H.shape[0] == 0 or H.shape[1] == 0:
        return xp.zeros(H.shape[0], dtype=H.dtype, device=device(H))
    largest = xp.max(xp.abs(H), axis=1)
    unit = xp.where(largest > 0, largest, xp.ones_like(largest))
    return unit * xp.sqrt(xp.sum((H / unit[:, None]) ** 2, axis=1))


def _enter(name: str, x: Array, dimensions: int) -> tuple[Any, Array, Any]:
    """Check an array; return its namespace, itself in at least float32, and its dtype."""
    check_array(name, x, dimensions)
    xp = namespace(x)
    wide = xp.astype(x, xp.float32) if bits(xp, x.dtype) == 16 else x
    if not bool(xp.all(xp.isfinite(wide))):
        raise NotFiniteError(f"{name} holds NaN or infinity: skip this step")
    return xp, wide, x.dtype
