"""A quadratic over the nonnegative orthant: the T-sized problem inside GEM."""

from __future__ import annotations

import numpy as np
from scipy.optimize import nnls

from gradproj._arrays import HostArray


def nonnegative_quadratic(A: HostArray, q: HostArray, tolerance: float) -> HostArray:
    r"""Minimise :math:`\tfrac12 u^\top A u + q^\top u` over :math:`u \ge 0`.

    `A` is positive semidefinite with a unit diagonal. A ridge of a tenth of `tolerance`, about the
    accuracy of `A`, is added to it: equal, opposite and dependent gradients leave the minimiser
    open along some directions, and the ridge picks the shortest where rounding would pick a huge
    one. With :math:`A = R^\top R` and :math:`R^\top b = -q` it is a least-squares problem,
    :math:`\|R u - b\|^2` over :math:`u \ge 0`; a last step of iterative refinement on the
    entries that are not zero takes the bias of the ridge out again.
    """
    scale = np.abs(q).max(initial=0.0)
    if scale == 0:
        return np.zeros_like(q)
    q = q / scale  # some releases of nnls compare with absolute tolerances
    values, vectors = np.linalg.eigh(A)
    ridge = tolerance / 10
    root = np.sqrt(np.maximum(values, 0.0) + ridge)
    u: HostArray = nnls(root[:, None] * vectors.T, -(vectors.T @ q) / root, maxiter=100 * len(q))[0]
    some = np.flatnonzero(u)
    if len(some):
        inner = A[np.ix_(some, some)]
        residual = -q[some] - inner @ u[some]
        step = np.linalg.solve(inner + ridge * np.eye(len(some)), residual)
        # A bias is small: a step that is not came from rounding in a nearly singular problem.
        if (np.abs(step) < 1e-3 * u[some]).all():
            u[some] += step
    u *= scale
    return u
