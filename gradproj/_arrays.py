"""The caller's arrays: library, dtype and device, the checks on entry, and the way back."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeAlias, TypeVar

import array_api_compat as compat
import numpy as np
import numpy.typing as npt

from gradproj._errors import NotFiniteError

# Any array of an array-API library. The standard defines no static type for it, hence `Any`.
Array: TypeAlias = Any
HostArray: TypeAlias = npt.NDArray[np.float64]
# For functions that return the type of array that they were given.
SameArray = TypeVar("SameArray")


@dataclass(frozen=True, slots=True)
class Entered:
    """Checked arrays in the form in which they are computed, and the way back to the caller's."""

    xp: Any
    arrays: list[Array]
    leave: Callable[[Array], Array]


def enter(arrays: Mapping[str, Array]) -> Entered:
    """Check arrays that belong to the same N parameters and prepare them for computing.

    A name that starts with a capital letter is a matrix (rows, N), any other a vector (N,).

    Tensors of torch on the CPU are computed through NumPy views of the same memory. OpenBLAS forms
    these products at least as fast, and the two libraries share one code path. Half precision is
    converted to float32 here, once. All other arrays are computed where and as they are.
    """
    names, values = list(arrays), list(arrays.values())
    if _are_plain(names, values):
        return Entered(np, values, _unchanged)
    views = _numpy_views(values)
    if views is not None and _are_plain(names, views):
        return Entered(np, views, _to_torch)
    for name, x in arrays.items():
        check_array(name, x)
        dimensions, wanted = (
            (2, "a matrix (rows, N)") if name[0].isupper() else (1, "one vector (N,)")
        )
        if x.ndim != dimensions:
            raise ValueError(f"{name} has shape {tuple(x.shape)}: expected {wanted}")
    check_alike(names, values)
    N = values[0].shape[-1]
    for name, x in arrays.items():
        if x.shape[-1] != N:
            raise ValueError(
                f"{name} has {x.shape[-1]} columns and {names[0]} has {N}: all arrays must "
                "belong to the same N parameters"
            )
    xp, dtype = namespace(values[0]), values[0].dtype
    leave: Callable[[Array], Array] = _unchanged
    half = bits(xp, dtype) == 16
    if half:
        values = [xp.astype(x, xp.float32) for x in values]
    if xp is np:
        inner = np
    elif compat.is_torch_array(values[0]) and values[0].device.type == "cpu":
        values = [_torch_memory(name, x) for name, x in zip(names, values, strict=True)]
        inner, leave = np, _to_torch
    else:
        inner = xp
    if half:
        return Entered(inner, values, lambda w: narrowed(xp, leave(w), dtype))
    return Entered(inner, values, leave)


def _are_plain(names: Sequence[str], arrays: Sequence[Array]) -> bool:
    """Whether the arrays are NumPy's, of one common dtype and of the right shapes.

    They pass all checks below. A model has many small layers, for which the checks take as long as
    the products.
    """
    first = arrays[0]
    if type(first) is not np.ndarray or first.dtype not in _PLAIN or not first.ndim:
        return False
    dtype, N = first.dtype, first.shape[-1]
    for name, x in zip(names, arrays, strict=True):
        if type(x) is not np.ndarray or x.dtype is not dtype or x.shape[-1:] != (N,):
            return False
        if x.ndim != (2 if name[0].isupper() else 1):
            return False
    return True


_PLAIN = (np.dtype(np.float32), np.dtype(np.float64))


def _numpy_views(arrays: Sequence[Array]) -> list[Array] | None:
    """Return views of torch tensors, or None if NumPy cannot read the memory of one of them."""
    torch: Any = sys.modules.get("torch")
    if torch is None or any(type(x) is not torch.Tensor for x in arrays):
        return None
    try:
        return [x.numpy() for x in arrays]
    except (RuntimeError, TypeError):
        return None


def _to_torch(w: Array) -> Array:
    return sys.modules["torch"].asarray(w, device="cpu")


def _unchanged(w: Array) -> Array:
    return w


def _torch_memory(name: str, x: Array) -> Array:
    """Return a NumPy view of a tensor on the CPU."""
    try:
        # NumPy cannot read a lazily negated view.
        return x.resolve_neg().numpy()
    except RuntimeError as error:
        raise TypeError(
            f"{name} has no memory of its own that can be read ({error}): pass plain tensors, and "
            "call gradproj outside of torch.vmap, torch.export and other transformations"
        ) from error


def check_array(name: str, x: Array) -> None:
    """Raise unless `x` is a dense array of real floating-point numbers."""
    # numpy.matrix always has two axes; array-api-compat 1.12 and older take it for an array.
    if not compat.is_array_api_obj(x) or isinstance(x, np.matrix):
        kind = f"{type(x).__module__}.{type(x).__qualname__}".removeprefix("builtins.")
        if kind.startswith(("scipy.sparse.", "cupyx.scipy.sparse.")):
            raise TypeError(f"{name} is a sparse array: pass {name}.toarray()")
        raise TypeError(
            f"{name} is a {kind}: pass an array of an array-API library (NumPy, CuPy, torch, …), "
            f"for example numpy.asarray({name})"
        )
    if type(x) is not np.ndarray:
        _check_form(name, x)
    if bits(namespace(x), x.dtype) not in (16, 32, 64):
        raise TypeError(
            f"{name} has dtype {x.dtype}: expected real floating-point numbers of 16, 32 or 64 "
            f"bits that {library(x)} can compute with; convert it first, for example to float32"
        )
    if not getattr(x.dtype, "isnative", True):
        raise TypeError(
            f"{name} has dtype {x.dtype} in a byte order that is not native: pass "
            f'{name}.astype({name}.dtype.newbyteorder("="))'
        )


def _check_form(name: str, x: Array) -> None:
    """Raise for arrays whose values are not there, or not stored one after the other."""
    if isinstance(x, np.ma.MaskedArray):
        raise TypeError(f"{name} is a masked array: fill it first, for example {name}.filled(0)")
    if compat.is_torch_array(x):
        if str(x.layout) != "torch.strided":
            raise TypeError(f"{name} has layout {x.layout}: pass {name}.to_dense()")
        if x.is_nested:
            raise TypeError(f"{name} is a nested tensor: pass one dense tensor")
        if x.is_meta:
            raise ValueError(f"{name} is on the meta device and has no values: load it first")
        if x.requires_grad:
            raise ValueError(f"{name} requires grad: pass {name}.detach(), nothing is recorded")
    elif compat.is_pydata_sparse_array(x):
        raise TypeError(f"{name} is a sparse array: pass {name}.todense()")
    elif compat.is_ndonnx_array(x):
        raise TypeError(
            f"{name} is an ndonnx array, which may have no values yet: pass {name}.unwrap_numpy()"
        )
    elif compat.is_jax_array(x):
        if isinstance(x, sys.modules["jax"].core.Tracer):
            raise TypeError(
                f"{name} is traced by JAX (jit, vmap or grad) and has no values yet, but the "
                "T-sized problem is solved on the host: call gradproj outside of the "
                "transformation, or through jax.pure_callback"
            )
        if x.is_deleted():
            raise ValueError(
                f"{name} has been deleted: it was probably donated to a jitted function "
                "(donate_argnums), so pass a copy that was not"
            )
    elif compat.is_dask_array(x):
        chunk = type(x._meta)
        if not (chunk is np.ndarray or compat.is_cupy_array(x._meta)):
            raise TypeError(
                f"{name} is a dask array of {chunk.__module__}.{chunk.__qualname__} chunks: its "
                "chunks must be dense NumPy or CuPy arrays"
            )
        if any(math.isnan(size) for size in x.shape):
            raise ValueError(
                f"{name} has chunks of unknown size: call {name}.compute_chunk_sizes() first"
            )
    elif not isinstance(x, np.ndarray | np.generic) and not hasattr(x, "device"):
        # MLX: it lacks devices, `full_matrices` of svd and other parts of the standard.
        raise TypeError(
            f"{name} is from {library(x)}, whose arrays do not follow the array API standard: pass "
            f"numpy.asarray({name})"
        )


def check_alike(names: Sequence[str], arrays: Sequence[Array]) -> None:
    """Raise if the arrays differ in library, device or dtype."""
    first = arrays[0]
    for name, x in zip(names[1:], arrays[1:], strict=True):
        if namespace(x) is not namespace(first):
            raise TypeError(
                f"{names[0]} is {_article(library(first))} {library(first)} array and {name} is "
                f"{_article(library(x))} {library(x)} array: pass arrays of one library"
            )
        if device(first) != device(x):
            raise ValueError(
                f"{names[0]} is on device {device(first)} and {name} is on {device(x)}: move both "
                "to one device"
            )
        if first.dtype != x.dtype:
            raise TypeError(
                f"{names[0]} has dtype {first.dtype} and {name} has dtype {x.dtype}: cast both to "
                "one dtype"
            )


def device(x: Array) -> Any:
    """Return the array's device, or None for NumPy arrays, which have only one device."""
    return None if isinstance(x, np.ndarray | np.generic) else compat.device(x)


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


def _article(word: str) -> str:
    return "an" if word[0] in "aeiou" else "a"


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


def widened(xp: Any, x: Array) -> Array:
    """Return the array in float64: where it is, or on the host if its device has no float64."""
    if isinstance(x, np.ndarray):
        return x.astype(np.float64, copy=False)
    return xp.astype(x, xp.float64) if has_float64(xp, x) else to_host(x)


def computing(x: Array, *, native: bool = False) -> AbstractContextManager[object]:
    """Enter what every computation with `x` needs, in one place.

    With `native`, torch computes with its tensors on the CPU too, not NumPy with views of them.

    - The array's device: CuPy allocates and computes on the current device.
    - Full precision: autocast would form products in 16 bits, and torch, CuPy and JAX can be set
      to form float32 products in TF32, with 10 bits of fraction.
    - Silence about overflow, which the results are checked for.
    """
    by_numpy = isinstance(x, np.ndarray)
    if not (by_numpy or native) and compat.is_torch_array(x):
        by_numpy = x.device.type == "cpu"
    if by_numpy:
        return np.errstate(over="ignore", invalid="ignore")
    return _computing(x)


@contextmanager
def _computing(x: Array) -> Iterator[None]:
    with np.errstate(over="ignore", invalid="ignore"):
        if compat.is_torch_array(x):
            with _torch_in_full_precision(x.device.type):
                yield
        elif compat.is_cupy_array(x):
            with x.device, _cupy_in_full_precision():
                yield
        elif compat.is_jax_array(x):
            with sys.modules["jax"].default_matmul_precision("highest"):
                yield
        else:
            yield


@contextmanager
def _torch_in_full_precision(kind: str) -> Iterator[None]:
    torch: Any = sys.modules["torch"]
    matmul = torch.backends.cuda.matmul
    found = _float32_products(torch)
    with torch.autocast(kind, enabled=False) if _autocasts(torch, kind) else nullcontext():
        if found in _EXACT:
            yield
            return
        matmul.fp32_precision = "ieee"
        try:
            yield
        finally:
            matmul.fp32_precision = found


def _autocasts(torch: Any, kind: str) -> bool:
    """Whether an autocast is active for that kind of device."""
    available = torch.amp.is_autocast_available(kind)
    return bool(available and torch.is_autocast_enabled(kind))


_EXACT = ("ieee", "none")


def _float32_products(torch: Any) -> str:
    """Return how CUDA forms float32 products; the setting exists since torch 2.9."""
    found: str = getattr(torch.backends.cuda.matmul, "fp32_precision", "none")
    return found


def is_plain(x: Array, like: Array) -> bool:
    """Whether `x` passes all checks beside `like` and :func:`computing` would change nothing.

    `like` has passed the checks. They take longer than a product of two small matrices.
    """
    if type(x) is not type(like) or x.dtype != like.dtype:
        return False
    if type(x) is np.ndarray:
        return True
    torch: Any = sys.modules.get("torch")
    return (
        torch is not None
        and type(x) is torch.Tensor
        and x.device == like.device
        and x.layout is torch.strided
        and not (x.requires_grad or x.is_nested)
        and not _autocasts(torch, x.device.type)
        and _float32_products(torch) in _EXACT
    )


@contextmanager
def _cupy_in_full_precision() -> Iterator[None]:
    # CuPy has no public name for what the environment variable CUPY_TF32 sets.
    core: Any = sys.modules["cupy"]._core
    tf32 = core._routines_linalg.COMPUTE_TYPE_TF32
    if core.get_compute_type(np.float32) != tf32:
        yield
        return
    core.set_compute_type(np.float32, core._routines_linalg.COMPUTE_TYPE_FP32)
    try:
        yield
    finally:
        core.set_compute_type(np.float32, tf32)


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
