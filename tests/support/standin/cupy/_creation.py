"""New arrays, which are on the current device, and the ways to the host and back."""

from __future__ import annotations

from typing import Any

import numpy as np

from cupy._array import DLPACK_CPU, DLPACK_CUDA, change_device, ndarray, wrap
from cupy.cuda import runtime


def array(
    obj: Any, dtype: Any = None, copy: bool | None = True, order: str = "K", ndmin: int = 0
) -> ndarray:
    here = isinstance(obj, ndarray) and obj._device_id == runtime.getDevice()
    if here and not copy and dtype in (None, obj.dtype) and ndmin <= obj.ndim:
        return obj
    made = np.array(_to_host(obj), dtype=dtype, order=order, ndmin=ndmin)
    if made.dtype.kind not in "biufc" and made.dtype.name != "bfloat16":
        raise ValueError(f"Unsupported dtype {made.dtype}")
    return wrap(made)


def asarray(a: Any, dtype: Any = None, order: Any = None, *, copy: bool | None = None) -> ndarray:
    return array(a, dtype, bool(copy), order or "K")


def asnumpy(a: Any, stream: Any = None, order: str = "C", out: Any = None) -> np.ndarray:
    return a.get(stream, order, out) if isinstance(a, ndarray) else np.asarray(a, order=order)


def from_dlpack(array: Any, *, device: Any = None, copy: bool | None = None) -> ndarray:
    if device is not None:
        raise NotImplementedError("from_dlpack() does not support device yet.")
    kind, device_id = array.__dlpack_device__()
    if kind == DLPACK_CPU:
        raise TypeError(
            "CPU arrays cannot be directly imported to CuPy. "
            "Use `cupy.array(numpy.from_dlpack(input))` instead."
        )
    if kind != DLPACK_CUDA:
        raise TypeError(f"Unsupported array type: {kind}")
    return wrap(np.from_dlpack(_OnHost(array.__dlpack__(max_version=(1, 0), copy=copy))), device_id)


class _OnHost:
    """An exported tensor as NumPy reads it."""

    def __init__(self, capsule: Any) -> None:
        self._capsule = change_device(capsule, DLPACK_CPU, 0)

    def __dlpack_device__(self) -> tuple[int, int]:
        return DLPACK_CPU, 0

    def __dlpack__(self, **options: Any) -> Any:
        del options
        return self._capsule


def _to_host(obj: Any) -> Any:
    """Read arrays of any device, also in lists: this is a copy, not a kernel."""
    if isinstance(obj, ndarray):
        return obj._host
    return [_to_host(x) for x in obj] if isinstance(obj, list | tuple) else obj
