"""A quadratic over the nonnegative orthant: the T-sized problem inside GEM."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from gradproj._arrays import HostArray

# Rounds in which all wrong variables are exchanged without fewer of them being wrong, before one
# variable at a time is exchanged, downhill only, which cannot cycle.
_PATIENCE = 3

# Few, since along directions that nobody can tell each may add the minimiser's own length to it.
_REFINEMENTS = 3


def nonnegative_quadratic(A: HostArray, q: HostArray, tolerance: float) -> HostArray:
    r"""Minimise :math:`\tfrac12 u^\top A u + q^\top u` over :math:`u \ge 0`.

    `A` is positive semidefinite with a unit diagonal, but for rounding. Equal, opposite and
    dependent gradients leave the minimiser open along some directions, where rounding would pick a
    huge one, or curve the quadratic downwards and leave none. So no direction has less curvature
    here than a tenth of `tolerance`, about the accuracy of `A`, of the largest: that picks the
    shortest minimiser. Some steps of iterative refinement take out what it has changed along the
    other directions.

    Solved by block principal pivoting: guess which entries are positive, solve for them, exchange
    those of the wrong sign. It takes a handful of rounds, or does not end, as where there are more
    tasks than a layer has numbers; the active sets of Lawson and Hanson do, in about T rounds. (Not
    SciPy's `nnls`: that of version 1.17 returned points far from optimal in 3 of 1,000 problems
    whose optimum is zero up to rounding, which is what a gradient that has been projected before
    poses.)
    """
    scale = float(np.abs(q).max(initial=0.0))
    if scale == 0:
        return np.zeros_like(q)
    q = q / scale
    values, vectors = np.linalg.eigh(A)
    least = max(tolerance / 10, 10 * np.finfo(float).eps) * values[-1]
    steady = vectors * np.maximum(values, least) @ vectors.T
    return scale * _refine(A, q, steady, _pivot(steady, q, least))


def _pivot(A: HostArray, q: HostArray, least: float) -> HostArray:
    """Minimise by exchanging all entries of the wrong sign at once, as long as that helps."""
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
    """Minimise from zero on, starting with a guess of which entries are positive."""
    u = np.zeros_like(q)
    # It ends by itself; the bound is for rounding that keeps it from ending, near the minimum.
    for _ in range(10 * len(q)):
        aim = _solve_free(A, q, free)
        past = free & (aim < 0)
        if past.any():  # as far as the first bound on the way, and stay there
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
    """Bring the minimiser for `steady` nearer to that for `A`, as long as it comes nearer."""
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
    """What is as good as zero: rounding, and what the least curvature makes of equal gradients."""
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
