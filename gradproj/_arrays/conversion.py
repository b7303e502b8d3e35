"""Conversions between dtypes, and of T-sized arrays to the host and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import array_api_compat as compat
import numpy as np

from gradproj._arrays.libraries import Array, HostArray, device, has_float64, namespace
from gradproj._errors import NotFiniteError


def widened(xp: Any, x: Array) -> Array:
    """Return the array in float64: where it is, or on the host if its device has no float64."""
    if isinstance(x, np.ndarray | np.generic):
        return x.astype(np.float64, copy=False)
    return xp.astype(x, xp.float64) if has_float64(xp, x) else to_host(x)


def narrowed(xp: Any, w: Array, dtype: Any) -> Array:
    """Round a result to its dtype; raise if it does not fit."""
    out = xp.astype(w, dtype)
    if not bool(xp.all(xp.isfinite(out))):
        raise overflow(dtype)
    return out


def overflow(dtype: Any) -> NotFiniteError:
    """Return the error for a result that its dtype cannot hold."""
    return NotFiniteError(
        f"the result does not fit into {dtype}: skip this step, or lower the loss scale"
    )


def as_numbers(name: str, values: Any) -> HostArray:
    """Return numbers in any form as a float64 array on the host; raise TypeError for others."""
    try:
        return np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"{name} is a {type(values).__name__}: expected numbers ({error})"
        ) from None


def to_host(x: Array) -> HostArray:
    """Copy a T-sized array to the host as float64.

    This is the only transfer that the core makes. The small problem has many branches, the standard
    has no nonnegative least squares, and on a GPU the time would go into kernel launches.
    """
    if isinstance(x, np.ndarray):
        return x.astype(np.float64, copy=False)
    if compat.is_cupy_array(x):
        return np.asarray(x.get(), dtype=np.float64)
    if compat.is_torch_array(x):
        return np.asarray(x.cpu(), dtype=np.float64)
    try:
        return np.asarray(x, dtype=np.float64)
    except (TypeError, ValueError, RuntimeError, BufferError):
        pass
    try:
        return np.asarray(np.from_dlpack(x, device="cpu"), dtype=np.float64)
    except (TypeError, ValueError, RuntimeError, BufferError):
        # The standard has no name for the host; the default device is the host or next to it.
        host = namespace(x).__array_namespace_info__().default_device()
        return np.asarray(compat.to_device(x, host), dtype=np.float64)


def stack_on_host(xp: Any, parts: Sequence[Array]) -> HostArray:
    """Stack T-sized arrays and copy them to the host in one transfer; the result is writable."""
    if len(parts) == 1:
        found = to_host(parts[0])[None]
    elif isinstance(parts[0], np.ndarray | np.generic):
        found = np.stack(parts).astype(np.float64, copy=False)
    else:
        found = to_host(xp.stack(parts))
    return found if found.flags.writeable else found.copy()


def from_host(x: HostArray, like: Array) -> Array:
    """Copy a T-sized host array to the library, device and dtype of `like`."""
    xp = namespace(like)
    narrow = x.astype(np.float64 if like.dtype == xp.float64 else np.float32)
    return narrow if xp is np else xp.asarray(narrow, device=device(like))
