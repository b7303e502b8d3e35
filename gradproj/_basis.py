"""The paper's algorithm, first half: decompose the old gradients and build a basis."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import array_api_compat as compat
import numpy as np

from gradproj._arrays import Array, Entered, SameArray, computing, device, enter
from gradproj._errors import NotFiniteError


def decompose(G: Array) -> tuple[Array, Array]:
    r"""Split the old tasks' gradients into a shared and a task-specific part.

    .. math:: \bar g = \arg\min_m \sum_i \|g_i - m\|^2 = \tfrac1T \sum_i g_i,
       \qquad \hat g_i = g_i - \bar g

    Parameters
    ----------
    G : array (T, N)
        Gradients of the old tasks, one per row.

    Returns
    -------
    shared : array (N,)
        The shared gradient :math:`\bar g`.
    specific : array (T, N)
        The task-specific gradients :math:`\hat g_i`; they sum to zero. A row that is only the
        rounding error of its subtraction is set to zero.

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
    with computing(G):
        given = enter_finite({"G": G})
        xp, (rows,) = given.xp, given.arrays
        T = rows.shape[0]
        if T == 0:
            raise ValueError("G has no rows: there is nothing to decompose without an old task")
        shared = xp.mean(rows, axis=0)
        specific = rows - shared
        if not bool(xp.all(xp.isfinite(specific))):
            raise NotFiniteError("G has numbers too large to be added up: lower the loss scale")
        noise = T * float(xp.finfo(rows.dtype).eps) * xp.max(lengths(xp, rows))
        clear = (lengths(xp, specific) > noise)[:, None]
        specific = xp.where(clear, specific, xp.zeros_like(specific))
        return given.leave(shared), given.leave(specific)


def gram_schmidt(
    H: SameArray, *, tolerance: float | None = None, scale: float | None = None
) -> SameArray:
    r"""Build an orthonormal basis of the rows' span by the Gram–Schmidt process.

    .. math:: b_k = \frac{r_k}{\|r_k\|}, \qquad
       r_k = h_k - \sum_{j<k} \langle b_j, h_k \rangle b_j

    The longest remainder is taken first and each direction is orthogonalised twice. So the basis is
    orthonormal up to rounding, and its size is the numerical rank.

    Parameters
    ----------
    H : array (T, N)
        The vectors, one per row: the task-specific gradients, or the first or last K of them.
    tolerance : float, optional
        A remainder shorter than ``tolerance * scale`` counts as zero. Default: 10 T times the
        dtype's rounding unit.
    scale : float, optional
        Default: the length of the longest row of `H`. If `H` is a small difference of long vectors,
        pass their length.

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
    _check_size("tolerance", tolerance)
    _check_size("scale", scale)
    with computing(H):
        given = enter_finite({"H": H})
        xp, (rows,) = given.xp, given.arrays
        T, N = rows.shape
        left = xp.asarray(rows, copy=True)
        basis = xp.zeros_like(rows[:0, :])  # dask cannot make empty arrays of any width
        length = lengths(xp, left)
        if scale is None:
            scale = float(xp.max(length)) if T else 0.0
        if tolerance is None:
            tolerance = 10 * T * float(xp.finfo(rows.dtype).eps)
        for _ in range(min(T, N)):
            k = int(xp.argmax(length))
            size = float(length[k])
            if size <= tolerance * scale:
                break
            b = left[k, :] / size
            b = b - (basis @ b) @ basis
            rest = lengths(xp, b[None, :])[0]
            if float(rest) < 0.5:  # mostly rounding along the basis, whatever the tolerance
                break
            b = b / rest
            b = b - (basis @ b) @ basis
            b = b / lengths(xp, b[None, :])[0]
            basis = _evaluated(xp.concat([basis, b[None, :]]))
            left = _evaluated(left - (left @ b)[:, None] * b)
            length = lengths(xp, left)
        made: SameArray = given.leave(basis)
        return made


def principal_components(
    H: SameArray, k: int | float | None = None, *, tolerance: float | None = None
) -> SameArray:
    r"""Find the k directions that hold the most variance of the rows.

    .. math:: B = \arg\max_{B B^\top = I_k} \|H B^\top\|_F^2

    `H` is not centred here, because task-specific gradients already are. The rows of B are the
    leading right singular vectors of `H`.

    Parameters
    ----------
    H : array (T, N)
        The task-specific gradients, one per row.
    k : int, float or None
        Number of directions; a float in (0, 1) for the fewest that hold that share of the variance;
        None for all. Never more than the numerical rank, because further directions are noise.
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
    if not is_rank(k):
        raise ValueError(f"k={k!r} is invalid: expected an integer >= 0, a float in (0, 1) or None")
    _check_size("tolerance", tolerance)
    with computing(H):
        given = enter_finite({"H": H})
        xp, (rows,) = given.xp, given.arrays
        T, N = rows.shape
        made: SameArray
        if min(T, N) == 0:
            made = given.leave(xp.zeros_like(rows[:0, :]))
            return made
        if compat.is_dask_array(rows):  # its SVD takes chunks along one axis only
            whole: Any = rows
            rows = whole.rechunk({0: -1})
        _, values, directions = xp.linalg.svd(rows, full_matrices=False)
        if tolerance is None:
            tolerance = 10 * T * float(xp.finfo(rows.dtype).eps)
        sizes = [float(value) for value in values]
        rank = sum(size > tolerance * sizes[0] for size in sizes)
        if isinstance(k, float | np.floating):
            variance = [(size / sizes[0]) ** 2 for size in sizes[:rank]]
            k = sum(sum(variance[:j]) < k * sum(variance) for j in range(rank))
        made = given.leave(directions[: rank if k is None else min(k, rank), :])
        return made


def _evaluated(x: Any) -> Any:
    """Evaluate a dask array, so that later steps do not repeat all earlier ones."""
    lazy = compat.is_dask_array(x)
    return x.persist() if lazy else x


def is_rank(k: object) -> bool:
    """Whether `k` is a valid number of directions: None for all, an integer, or a share."""
    if isinstance(k, float | np.floating):
        return bool(0 < k < 1)
    is_count = isinstance(k, int | np.integer) and not isinstance(k, bool) and k >= 0
    return k is None or bool(is_count)


def _check_size(name: str, value: float | None) -> None:
    """Raise unless the option is a finite number >= 0, or not given."""
    if value is not None and not 0 <= value < np.inf:
        raise ValueError(f"{name}={value!r} is invalid: expected a finite number >= 0")


def lengths(xp: Any, H: Array) -> Array:
    """Return the norm of each row without overflow or underflow."""
    if H.shape[0] == 0 or H.shape[1] == 0:
        return xp.zeros(H.shape[0], dtype=H.dtype, device=device(H))
    largest = xp.max(xp.abs(H), axis=1)
    unit = xp.where(largest > 0, largest, xp.ones_like(largest))
    return unit * xp.sqrt(xp.sum((H / unit[:, None]) ** 2, axis=1))


def enter_finite(arrays: Mapping[str, Array]) -> Entered:
    """Enter arrays as :func:`enter` does; raise if one contains NaN or infinity."""
    given = enter(arrays)
    for name, x in zip(arrays, given.arrays, strict=True):
        if not bool(given.xp.all(given.xp.isfinite(x))):
            raise NotFiniteError(f"{name} contains NaN or infinity: skip this step")
    return given
