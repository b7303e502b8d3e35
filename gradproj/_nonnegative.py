"""A quadratic over the nonnegative orthant: the T-sized problem inside GEM."""

from __future__ import annotations

import numpy as np
from scipy.optimize import nnls

from gradproj._arrays import HostArray


def nonnegative_quadratic(A: HostArray, q: HostArray, tolerance: float) -> HostArray:
    r"""Minimise :math:`\tfrac12 u^\top A u + q^\top u` over :math:`u \ge 0`.

    `A` is positive semidefinite with a unit diagonal, and `q` lies in its range up to rounding. With
    :math:`A = R^\top R` and :math:`R^\top b = -q` it is the nonnegative least-squares problem
    :math:`\|R u - b\|^2`. Directions in which `A` is zero up to `tolerance` are left out of R, so
    equal, opposite and dependent gradients need no regularisation.
    """
    values, vectors = np.linalg.eigh(A)
    kept = values > tolerance * values[-1]
    root = np.sqrt(values[kept])
    R = root[:, None] * vectors[:, kept].T
    b = -(vectors[:, kept].T @ q) / root
    u: HostArray = nnls(R, b, maxiter=100 * len(q))[0]
    return u
