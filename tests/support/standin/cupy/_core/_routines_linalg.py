"""How products are formed: float32 ones from numbers with 10 bits of fraction if TF32 is set."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as _np

COMPUTE_TYPE_TBD = 0
COMPUTE_TYPE_DEFAULT = 1
COMPUTE_TYPE_PEDANTIC = 2
COMPUTE_TYPE_FP32 = 4
COMPUTE_TYPE_TF32 = 7

# One setting for the whole process, as in CuPy: not one per thread or device.
_compute_types: dict[Any, int] = {}


def set_compute_type(dtype: Any, compute_type: int) -> None:
    _compute_types[_np.dtype(dtype)] = compute_type


def get_compute_type(dtype: Any) -> int:
    """Return the setting; until something sets it, the environment decides, read at first use."""
    dtype = _np.dtype(dtype)
    if _compute_types.get(dtype, COMPUTE_TYPE_TBD) == COMPUTE_TYPE_TBD:
        tf32 = dtype == _np.float32 and int(os.getenv("CUPY_TF32", "0")) > 0
        _compute_types[dtype] = COMPUTE_TYPE_TF32 if tf32 else COMPUTE_TYPE_DEFAULT
    return _compute_types[dtype]


def product(multiply: Callable[..., Any], a: Any, b: Any, **options: Any) -> Any:
    """Multiply two host arrays as the setting for their dtype says."""
    if a.dtype == b.dtype == _np.float32 and get_compute_type(a.dtype) == COMPUTE_TYPE_TF32:
        a, b = _rounded(a), _rounded(b)
    return multiply(_straight(a), _straight(b), **options)


def _straight(x: Any) -> Any:
    """Copy an array that BLAS cannot read in place, as CuPy does for cuBLAS."""
    whole = x.flags.c_contiguous or x.flags.f_contiguous or x.ndim > 2
    return x if whole else _np.ascontiguousarray(x)


def _rounded(x: Any) -> Any:
    """Round float32 numbers to 10 of their 23 bits of fraction."""
    fraction, exponent = _np.frexp(x)
    return _np.ldexp(_np.round(fraction * _np.float32(2048)), exponent - 11)
