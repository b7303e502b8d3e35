"""The array class: NumPy's memory behind CuPy's rules."""

from __future__ import annotations

import ctypes
import functools
from typing import Any

import numpy as np

import cupy
from cupy._core._routines_linalg import product
from cupy.cuda import runtime
from cupy.cuda.device import Device

DLPACK_CPU, DLPACK_CUDA = 1, 2


def wrap(result: Any, device_id: int | None = None) -> Any:
    """Put NumPy's results on a device, by default the current one; leave others as they are."""
    if isinstance(result, tuple | list):
        return tuple(wrap(part, device_id) for part in result)
    if not isinstance(result, np.ndarray | np.generic):
        return result
    made = object.__new__(ndarray)
    made._host = np.asarray(result)
    made._device_id = runtime.getDevice() if device_id is None else device_id
    return made


def operand(x: Any) -> Any:
    """Return the memory of an array that a kernel may read, or raise as CuPy does."""
    if isinstance(x, ndarray):
        current = runtime.getDevice()
        if x._device_id != current:
            raise ValueError(
                f"The device where the array resides ({x._device_id}) is different from the "
                f"current device ({current}). Peer access is unavailable between these devices."
            )
        return x._host
    if isinstance(x, np.ndarray):
        raise TypeError(f"Unsupported type {type(x)}")
    return type(x)(map(operand, x)) if type(x) in (list, tuple) else x


def launch(compute: Any, *arguments: Any, **options: Any) -> Any:
    """Compute on the current device. A GPU does not warn about overflow."""
    options = {name: operand(value) for name, value in options.items()}
    with np.errstate(all="ignore"):
        return wrap(compute(*map(operand, arguments), **options))


def matmul(*args: Any, out: Any = None) -> Any:
    return launch(functools.partial(product, np.matmul), *args, out=out)


def _binary(compute: Any) -> tuple[Any, Any, Any]:
    """Return an operator, its reflection and its form in place."""

    def is_known(other: Any) -> bool:
        # NumPy's arrays are known, too: `operand` refuses them.
        return isinstance(other, ndarray | np.ndarray | np.generic | int | float | complex)

    def forward(self: Any, other: Any) -> Any:
        return compute(self, other) if is_known(other) else NotImplemented

    def reflected(self: Any, other: Any) -> Any:
        return compute(other, self) if is_known(other) else NotImplemented

    def in_place(self: Any, other: Any) -> Any:
        compute(self, other, out=self)
        return self

    return forward, reflected, in_place


def _operator(name: str) -> tuple[Any, Any, Any]:
    return _binary(functools.partial(launch, getattr(np, name)))


class ndarray:  # noqa: N801 (CuPy's name)
    _host: np.ndarray
    _device_id: int
    __hash__ = None
    __array_priority__ = 100

    # Facts about the memory, and views of it: none of them needs the device to be current.

    shape = property(lambda self: self._host.shape)
    ndim = property(lambda self: self._host.ndim)
    size = property(lambda self: self._host.size)
    dtype = property(lambda self: self._host.dtype)
    itemsize = property(lambda self: self._host.itemsize)
    strides = property(lambda self: self._host.strides)
    device = property(lambda self: Device(self._device_id))
    T = property(lambda self: wrap(self._host.T, self._device_id))
    mT = property(lambda self: wrap(self._host.mT, self._device_id))  # noqa: N815

    def __len__(self) -> int:
        return len(self._host)

    def __iter__(self) -> Any:
        if self.ndim == 0:
            raise TypeError("iteration over a 0-d array")
        return (self[i] for i in range(len(self)))

    def __getitem__(self, slices: Any) -> ndarray:
        index, is_view = _index(slices)
        return wrap((self._host if is_view else operand(self))[index], self._device_id)

    def reshape(self, *shape: Any) -> ndarray:
        return wrap(self._host.reshape(*shape), self._device_id)

    # Copies to the host, which wait for the device.

    def get(self, stream: Any = None, order: str = "C", out: Any = None) -> np.ndarray:
        del stream
        if out is None:
            return np.array(self._host, order=order)
        out[...] = self._host
        return out

    def item(self) -> Any:
        return self._host.item()

    def tolist(self) -> Any:
        return self._host.tolist()

    def __float__(self) -> float:
        return float(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def __bool__(self) -> bool:
        return bool(self._host)

    def __repr__(self) -> str:
        return repr(self._host)

    def __format__(self, spec: str) -> str:
        return format(self.item() if self.ndim == 0 else str(self), spec)

    # Exchange with other libraries.

    def __array__(self, dtype: Any = None) -> Any:
        raise TypeError(
            "Implicit conversion to a NumPy array is not allowed. "
            "Please use `.get()` to construct a NumPy array explicitly."
        )

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        ours = getattr(cupy, ufunc.__name__, None)
        return ours(*inputs, **options) if ours and method == "__call__" else NotImplemented

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        place = cupy.linalg if func.__module__ == "numpy.linalg" else cupy
        ours = getattr(place, func.__name__, None)
        return ours(*args, **kwargs) if ours else NotImplemented

    def __dlpack_device__(self) -> tuple[int, int]:
        return DLPACK_CUDA, self._device_id

    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: Any = None,
        dl_device: Any = None,
        copy: Any = None,
    ) -> Any:
        del stream
        to_host = dl_device == (DLPACK_CPU, 0)
        memory = self.get() if copy or to_host else self._host
        versioned = np.lib.NumpyVersion(np.__version__) >= "2.1.0"
        capsule = memory.__dlpack__(**({"max_version": max_version} if versioned else {}))
        return capsule if to_host else change_device(capsule, *self.__dlpack_device__())

    # Work for the device.

    def __setitem__(self, slices: Any, value: Any) -> None:
        with np.errstate(all="ignore"):
            operand(self)[_index(slices)[0]] = operand(value)

    def fill(self, value: Any) -> None:
        self[...] = value

    def copy(self, order: str = "C") -> ndarray:
        return wrap(self._host.copy(order))  # onto the current device, from any other

    def astype(self, dtype: Any, order: str = "K", *, copy: bool = True) -> ndarray:
        if not copy and self.dtype == dtype:
            return self
        return launch(np.ndarray.astype, self, dtype, order)

    def sum(self, axis: Any = None, dtype: Any = None) -> ndarray:
        return launch(np.sum, self, axis, dtype)

    def max(self, axis: Any = None) -> ndarray:
        return launch(np.max, self, axis)

    def all(self, axis: Any = None) -> ndarray:
        return launch(np.all, self, axis)

    __add__, __radd__, __iadd__ = _operator("add")
    __sub__, __rsub__, __isub__ = _operator("subtract")
    __mul__, __rmul__, __imul__ = _operator("multiply")
    __truediv__, __rtruediv__, __itruediv__ = _operator("true_divide")
    __pow__, __rpow__, __ipow__ = _operator("power")
    __and__, __rand__, __iand__ = _operator("bitwise_and")
    __or__, __ror__, __ior__ = _operator("bitwise_or")
    __matmul__, __rmatmul__, _ = _binary(matmul)
    (__eq__, *_), (__ne__, *_) = _operator("equal"), _operator("not_equal")
    (__lt__, *_), (__le__, *_) = _operator("less"), _operator("less_equal")
    (__gt__, *_), (__ge__, *_) = _operator("greater"), _operator("greater_equal")

    def __neg__(self) -> ndarray:
        return launch(np.negative, self)

    def __abs__(self) -> ndarray:
        return launch(np.abs, self)

    def __invert__(self) -> ndarray:
        return launch(np.invert, self)


def change_device(capsule: Any, kind: int, device_id: int) -> Any:
    """Write another device into an exported tensor: two 32-bit numbers after the data pointer."""
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    name, start = (b"dltensor_versioned", 40) if "versioned" in repr(capsule) else (b"dltensor", 8)
    (ctypes.c_int32 * 2).from_address(pointer(capsule, name) + start)[:] = kind, device_id
    return capsule


def _index(slices: Any) -> tuple[Any, bool]:
    """Return an index that gives an array, never a scalar, and whether it gives a view."""
    parts = slices if isinstance(slices, tuple) else (slices,)
    basic = (slice, int, np.integer, type(None), type(...))
    is_view = all(isinstance(part, basic) and not isinstance(part, bool) for part in parts)
    if not any(part is ... for part in parts):
        parts = (*parts, ...)
    return tuple(operand(p) if isinstance(p, ndarray) else p for p in parts), is_view
