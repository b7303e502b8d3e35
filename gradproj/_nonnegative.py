"""A quadratic over the nonnegative orthant: the T-sized problem inside GEM."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from gradproj._arrays import HostArray

# Rounds in which all wrong variables are exchanged without fewer of them being wrong, before one
# variable at a time is exchanged, which cannot cycle.
_PATIENCE = 3


def nonnegative_quadratic(A: HostArray, q: HostArray, tolerance: float) -> HostArray:
    r"""Minimise :math:`\tfrac12 u^\top A u + q^\top u` over :math:`u \ge 0`.

    `A` is positive semidefinite with a unit diagonal. A ridge of a tenth of `tolerance`, about the
    accuracy of `A`, is added to it: equal, opposite and dependent gradients leave the minimiser
    open along some directions, and the ridge picks the shortest where rounding would pick a huge
    one. A last step of iterative refinement takes the bias of the ridge out again.

    Solved by block principal pivoting: guess which entries are positive, solve for them, exchange
    those of the wrong sign. It takes a handful of rounds. (Not SciPy's `nnls`: that of version 1.17
    returned points far from optimal in 3 of 1,000 problems whose optimum is zero up to rounding,
    which is what a gradient that has been projected before poses.)
    """
    scale = np.abs(q).max(initial=0.0)
    if scale == 0:
        return np.zeros_like(q)
    q = q / scale
    ridge = tolerance / 10
    steady = A + ridge * np.eye(len(q))
    free = q < 0
    fewest, patience = len(q) + 1, _PATIENCE
    u = np.zeros_like(q)
    # Exchanging one at a time ends by itself; the bound is for rounding that keeps it from ending.
    for _ in range(100 * len(q)):
        u = _solve_free(steady, q, free)
        slope = steady @ u + q
        # As good as zero: rounding, and what the ridge makes of equal gradients.
        small = 10 * len(q) * np.finfo(float).eps + 2 * ridge * np.abs(u).max()
        wrong = np.where(free, u < 0, slope < -small)
        count = int(wrong.sum())
        if count == 0:
            break
        if count < fewest:
            fewest, patience = count, _PATIENCE
        elif patience:
            patience -= 1
        else:
            wrong[: np.flatnonzero(wrong)[-1]] = False
        free ^= wrong
    u = np.maximum(u, 0.0)
    some = np.flatnonzero(u)
    if len(some):
        step = _solve_free(steady, A @ u + q, u > 0)[some]
        # A bias is small: a step that is not came from rounding in a nearly singular problem.
        if (np.abs(step) < 1e-3 * u[some]).all():
            u[some] += step
    u *= scale
    return u


def _solve_free(A: HostArray, q: HostArray, free: npt.NDArray[np.bool_]) -> HostArray:
    """Minimise over the free entries, the others being zero."""
    some = np.flatnonzero(free)
    u = np.zeros_like(q)
    if len(some) == len(q):
        u[:] = np.linalg.solve(A, -q)
    elif len(some):
        u[some] = np.linalg.solve(A[some[:, None], some], -q[some])
    return u
