"""Decompositions of matrices."""

from typing import Any as _Any

import numpy as _np
from numpy import linalg as _linalg

from cupy._functions import kernel as _kernel


def _cholesky(a: _Any) -> _Any:
    # CuPy does not look whether there is a factor: without one, the result is meaningless.
    try:
        return _linalg.cholesky(a)
    except _linalg.LinAlgError:
        return _np.tril(a)


cholesky = _kernel(lambda a: _cholesky(a))
eigh = _kernel(lambda a, UPLO="L": _linalg.eigh(a, UPLO))
inv = _kernel(lambda a: _linalg.inv(a))
lstsq = _kernel(lambda a, b, rcond=None: _linalg.lstsq(a, b, rcond))
norm = _kernel(lambda x, ord=None, axis=None, keepdims=False: _linalg.norm(x, ord, axis, keepdims))
qr = _kernel(lambda a, mode="reduced": _linalg.qr(a, mode))
svd = _kernel(lambda a, full_matrices=True: _linalg.svd(a, full_matrices))
