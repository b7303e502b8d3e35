"""Facts about an array and its library: namespace, device, dtype."""

from __future__ import annotations

from functools import cache
from typing import Any, TypeAlias, TypeVar

import array_api_compat as compat
import numpy as np
import numpy.typing as npt

# Any array of an array-API library. The standard defines no static type for it, hence `Any`.
Array: TypeAlias = Any

HostArray: TypeAlias = npt.NDArray[np.float64]

# For functions that return the type of array that they were given.
SameArray = TypeVar("SameArray")

_namespaces: dict[type, Any] = {}


def namespace(x: Array) -> Any:
    """Return the array's namespace. Cached per array type, because a model has many layers."""
    xp = _namespaces.get(type(x))
    if xp is None:
        # NumPy 2 is an array-API library itself and needs no wrapper.
        xp = np if isinstance(x, np.ndarray | np.generic) else compat.array_namespace(x)
        _namespaces[type(x)] = xp
    return xp


def library(x: Array) -> str:
    """Return the name of the array's library, for messages.

    It is that of the namespace: a subclass of an array may be defined anywhere.
    """
    name: str = namespace(x).__name__
    return name.removeprefix("array_api_compat.").partition(".")[0]


def device(x: Array) -> Any:
    """Return the array's device, or None for NumPy arrays, which have only one device."""
    return None if isinstance(x, np.ndarray | np.generic) else compat.device(x)


@cache
def bits(xp: Any, dtype: Any) -> int:
    """Return the number of bits of a real floating-point dtype, or 0 for any other dtype."""
    try:
        if xp.isdtype(dtype, "real floating"):
            return int(xp.finfo(dtype).bits)
    except (TypeError, ValueError):  # a dtype of another package
        pass
    # NumPy and CuPy convert the bfloat16 of ml_dtypes, which their `isdtype` does not list. JAX
    # users have such NumPy arrays, from numpy.asarray.
    known = xp is np or compat.is_cupy_namespace(xp)
    return 16 if known and str(dtype) == "bfloat16" else 0


def has_float64(xp: Any, like: Array) -> bool:
    """Whether the library has float64 on the device of `like`: torch's MPS does not.

    Not cached: CuPy's devices cannot be hashed, and JAX's float64 can be switched on and off.
    """
    if compat.is_cupy_namespace(xp):
        return True
    if compat.is_jax_namespace(xp):
        return bool(xp.zeros(()).dtype == xp.float64)
    try:
        xp.zeros(1, dtype=xp.float64, device=device(like))
    except (TypeError, ValueError, RuntimeError):
        return False
    return True
