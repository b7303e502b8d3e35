"""The T-sized problem inside GEM: minimise a quadratic over nonnegative variables."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from gradproj._arrays import HostArray

# Rounds that may exchange all wrong variables without reducing their number. After that, one
# variable at a time is exchanged and the objective decreases, which cannot cycle.
_PATIENCE = 3

# Keep this small: along nearly degenerate directions each step can add an error as large as the
# solution.
_REFINEMENTS = 3

# Sine of the angle between a unit gradient and the span of others above which it clearly differs.
_CLEAR = 0.03


def nonnegative_quadratic(A: HostArray, q: HostArray, tolerance: float) -> HostArray:
    r"""Minimise :math:`\tfrac12 u^\top A u + q^\top u` over :math:`u \ge 0`.

    `A` is positive semidefinite with a unit diagonal, up to rounding. Equal, opposite and dependent
    gradients leave the minimiser undetermined along some directions. Rounding would then select a
    huge minimiser, or make the quadratic unbounded. So every direction gets at least a curvature of
    a tenth of `tolerance` (the accuracy of `A`) times the largest, which selects the shortest
    minimiser. A few steps of iterative refinement remove the effect on the other directions.

    The algorithm is block principal pivoting: guess which entries are positive, solve for them,
    exchange those of the wrong sign. It takes a few rounds, or does not end, for example with more
    tasks than parameters. Then the active-set algorithm of Lawson and Hanson takes over, which ends
    after about T rounds. SciPy's `nnls` is not used: version 1.17 returned points far from optimal
    in 3 of 1,000 problems whose optimum is zero up to rounding (scipy issue 25389).
    """
    scale = float(np.abs(q).max(initial=0.0))
    if scale == 0:
        return np.zeros_like(q)
    q = q / scale
    if _is_clear(A):
        return scale * _pivot(A, q, 10 * np.finfo(float).eps)
    values, vectors = np.linalg.eigh(A)
    least = max(tolerance / 10, 10 * np.finfo(float).eps) * values[-1]
    steady = vectors * np.maximum(values, least) @ vectors.T
    return scale * _refine(A, q, steady, _pivot(steady, q, least))


def _is_clear(A: HostArray) -> bool:
    """Whether no gradient is nearly in the span of those before it, so that no help is needed."""
    try:
        return bool(np.diagonal(np.linalg.cholesky(A)).min() > _CLEAR)
    except np.linalg.LinAlgError:
        return False


def _pivot(A: HostArray, q: HostArray, least: float) -> HostArray:
    """Minimise by exchanging all entries of the wrong sign at once, while that helps."""
    free = q < 0
    fewest, patience = len(q) + 1, _PATIENCE
    while patience:
        u = _solve_free(A, q, free)
        wrong = np.where(free, u < 0, A @ u + q < -_rounding(u, least))
        count = int(wrong.sum())
        if count == 0:
            return u
        patience = _PATIENCE if count < fewest else patience - 1
        fewest = min(count, fewest)
        free ^= wrong
    return _descend(A, q, free, least)


def _descend(A: HostArray, q: HostArray, free: npt.NDArray[np.bool_], least: float) -> HostArray:
    """Minimise by descent, starting from zero and a guess of which entries are positive."""
    u = np.zeros_like(q)
    # It ends by itself unless rounding prevents it near the minimum, hence the bound.
    for _ in range(10 * len(q)):
        aim = _solve_free(A, q, free)
        past = free & (aim < 0)
        if past.any():  # stop at the first bound on the way
            share = np.divide(u, u - aim, out=np.ones_like(u), where=past)
            u = u + share.min() * (aim - u)
            free = free & ~(past & (share == share.min()))
            u[~free] = 0.0
            continue
        u = aim
        slope = np.where(free, 0.0, A @ u + q)
        steepest = slope.argmin()
        if slope[steepest] >= -_rounding(u, least):
            break
        free[steepest] = True
    return u


def _refine(A: HostArray, q: HostArray, steady: HostArray, u: HostArray) -> HostArray:
    """Refine the minimiser for `steady` into that for `A`, while the residual decreases."""
    free = u > 0
    left = np.where(free, A @ u + q, 0.0)
    for _ in range(_REFINEMENTS):
        better = u + _solve_free(steady, left, free)
        still = np.where(free, A @ better + q, 0.0)
        if (better < 0).any() or np.abs(still).max() >= np.abs(left).max():
            break
        u, left = better, still
    return u


def _rounding(u: HostArray, least: float) -> float:
    """Return the size up to which a slope counts as zero: rounding and the least curvature."""
    return float(10 * len(u) * np.finfo(float).eps + 2 * least * np.abs(u).max())


def _solve_free(A: HostArray, q: HostArray, free: npt.NDArray[np.bool_]) -> HostArray:
    """Minimise over the free entries, the others being zero."""
    some = np.flatnonzero(free)
    u = np.zeros_like(q)
    if len(some) == len(q):
        u[:] = np.linalg.solve(A, -q)
    elif len(some):
        u[some] = np.linalg.solve(A[some[:, None], some], -q[some])
    return u
