"""A stand-in for CuPy, backed by NumPy: the rules by which CuPy differs, without a GPU.

It has the names that the core and array-api-compat's wrapper use, and no name or parameter that
CuPy does not have (`tests/core/test_cupy_standin.py` compares the two).
"""

# ruff: noqa: F401
from numpy import (
    bool_,
    complex64,
    complex128,
    dtype,
    finfo,
    float16,
    float32,
    float64,
    iinfo,
    int8,
    int16,
    int32,
    int64,
    integer,
    intp,
    isdtype,
    issubdtype,
    newaxis,
    uint8,
    uint16,
    uint32,
    uint64,
)

from cupy import _core, cuda, fft, linalg
from cupy._array import ndarray
from cupy._creation import array, asarray, asnumpy, from_dlpack
from cupy._functions import FUNCTIONS

globals().update(FUNCTIONS)
del FUNCTIONS
