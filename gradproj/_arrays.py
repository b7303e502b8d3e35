"""What the core needs to know of the caller's arrays: library, dtype, device, and the way back."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeAlias, TypeVar

import array_api_compat as compat
import numpy as np
import numpy.typing as npt

from gradproj._errors import NotFiniteError

# Any array of an array-API library. The standard has no static type for it, hence `Any`.
Array: TypeAlias = Any
HostArray: TypeAlias = npt.NDArray[np.float64]
# What comes out is of the type that went in.
SameArray = TypeVar("SameArray")


@dataclass(frozen=True)
class Entered:
    """One (g, G) pair, checked and in the form it is computed in."""

    xp: Any
    g: Array
    G: Array
    leave: Callable[[Array], Array]


def enter(g: Array, G: Array, label: str = "") -> Entered:
    """Check one pair of gradients and bring it into the form it is computed in.

    torch tensors on the CPU are computed through NumPy views of the same memory: OpenBLAS takes the
    T×N products at least as fast, and the two libraries share one code path. Half precision is
    converted to float32 here, once. Everything else is computed where and as it is.
    """
    names = f"g{label}", f"G{label}"
    check_array(names[0], g, 1)
    check_array(names[1], G, 2)
    xp = common_namespace(names, (g, G))
    if G.shape[1] != g.shape[0]:
        raise ValueError(
            f"{names[1]} has {G.shape[1]} columns and {names[0]} has {g.shape[0]} entries: "
            "the rows of G are the old tasks' gradients, each as long as g"
        )
    dtype = g.dtype
    if bits(xp, dtype) == 16:
        g, G = xp.astype(g, xp.float32), xp.astype(G, xp.float32)
        inner = enter(g, G, label)
        return Entered(inner.xp, inner.g, inner.G, lambda w: narrowed(xp, inner.leave(w), dtype))
    if compat.is_torch_array(g) and g.device.type == "cpu":
        # A view that only notes that its numbers are negated would be handed over without the note.
        g, G = g.resolve_neg(), G.resolve_neg()
        return Entered(
            np, np.from_dlpack(g), np.from_dlpack(G), lambda w: xp.asarray(w, device="cpu")
        )
    return Entered(xp, g, G, lambda w: w)


def check_array(name: str, x: Array, dimensions: int) -> None:
    """Raise unless `x` is a real floating-point array of that many dimensions."""
    if not compat.is_array_api_obj(x):
        raise TypeError(
            f"{name} is a {type(x).__name__}: pass an array of an array-API library "
            "(NumPy, CuPy, torch, …), for example numpy.asarray(…)"
        )
    check_form(name, x)
    if bits(namespace(x), x.dtype) not in (16, 32, 64):
        raise TypeError(
            f"{name} has dtype {x.dtype}: gradients are real floating-point numbers of 16, 32 or "
            "64 bits; convert it first"
        )
    if x.ndim != dimensions:
        wanted = "one vector (N,)" if dimensions == 1 else "a matrix with one gradient a row (T, N)"
        raise ValueError(f"{name} has shape {tuple(x.shape)}: it should be {wanted}")
    if getattr(x, "requires_grad", False):
        raise ValueError(f"{name} requires grad: pass {name}.detach(), nothing here is recorded")


def check_form(name: str, x: Array) -> None:
    """Raise for arrays that look like others but do not hold their numbers one after the other."""
    if isinstance(x, np.ndarray):
        if isinstance(x, np.ma.MaskedArray):
            raise TypeError(
                f"{name} is a masked array: fill it first, for example {name}.filled(0)"
            )
        if not x.dtype.isnative:
            raise TypeError(
                f"{name} has dtype {x.dtype} in another byte order than this machine's: pass "
                f'{name}.astype({name}.dtype.newbyteorder("="))'
            )
    elif compat.is_torch_array(x):
        if str(x.layout) != "torch.strided":
            raise TypeError(f"{name} has layout {x.layout}: pass {name}.to_dense()")
        if x.is_meta:
            raise ValueError(f"{name} is on the meta device and has no numbers: load it first")


def common_namespace(names: tuple[str, ...], arrays: tuple[Array, ...]) -> Any:
    """Return the arrays' one namespace; raise if library, device or dtype differ."""
    first = arrays[0]
    xp = namespace(first)
    for name, x in zip(names[1:], arrays[1:], strict=True):
        if namespace(x) is not xp:
            libraries = [namespace(a).__name__.rsplit(".", 1)[-1] for a in (first, x)]
            raise TypeError(
                f"{names[0]} is a {libraries[0]} array and {name} a {libraries[1]} array: "
                "pass both from one library"
            )
        if device(first) != device(x):
            raise ValueError(
                f"{names[0]} is on device {device(first)} and {name} on {device(x)}: "
                "move both to one device"
            )
        if first.dtype != x.dtype:
            raise TypeError(
                f"{names[0]} has dtype {first.dtype} and {name} {x.dtype}: cast both to one dtype"
            )
    return xp


def device(x: Array) -> Any:
    """Return the array's device, or None for NumPy, which has but one and takes None for it."""
    return None if isinstance(x, np.ndarray) else compat.device(x)


_namespaces: dict[type, Any] = {}


def namespace(x: Array) -> Any:
    """Return the array's namespace; looked up once a type, since small layers come by the dozen."""
    xp = _namespaces.get(type(x))
    if xp is None:
        # NumPy 2 is an array-API library itself and needs no wrapper.
        xp = np if isinstance(x, np.ndarray) else compat.array_namespace(x)
        _namespaces[type(x)] = xp
    return xp


@cache
def bits(xp: Any, dtype: Any) -> int:
    """Return the number of bits of a real floating-point dtype, 0 for any other."""
    try:
        return int(xp.finfo(dtype).bits) if xp.isdtype(dtype, "real floating") else 0
    except TypeError:  # a dtype that the library has from elsewhere
        return 0


def narrowed(xp: Any, w: Array, dtype: Any) -> Array:
    """Round an update to its dtype; raise if it does not fit."""
    with np.errstate(over="ignore"):
        out = xp.astype(w, dtype)
    if not bool(xp.all(xp.isfinite(out))):
        raise NotFiniteError(
            f"the update does not fit into {dtype}: skip this step, or lower the loss scale"
        )
    return out


def has_float64(xp: Any, place: Any) -> bool:
    """Whether the library has float64 on that device: torch's MPS has not."""
    if compat.is_jax_namespace(xp):  # not to be remembered: people switch it on and off
        return bool(xp.zeros(()).dtype == xp.float64)
    return _makes_float64(xp, place)


@cache
def _makes_float64(xp: Any, place: Any) -> bool:
    try:
        xp.zeros(1, dtype=xp.float64, device=place)
    except (TypeError, ValueError, RuntimeError):
        return False
    return True


def widened(xp: Any, x: Array) -> Array:
    """Return the array in float64: where it is, or on the host if its device has no float64."""
    if isinstance(x, np.ndarray):
        return np.asarray(x, dtype=np.float64)
    return xp.astype(x, xp.float64) if has_float64(xp, device(x)) else to_host(x)


def full_precision(x: Array) -> AbstractContextManager[object]:
    """Have products with `x` formed with all bits of their numbers, whatever the caller has set.

    An autocast around the call would form them in 16 bits. GPUs form those of float32 numbers in
    TF32, with 10 bits of fraction, where torch has been told to; JAX has them do it by itself.
    """
    if isinstance(x, np.ndarray):
        return nullcontext()
    if compat.is_torch_array(x):
        return _torch_in_full_precision(x.device.type)
    if compat.is_jax_array(x):
        precise: AbstractContextManager[object] = sys.modules["jax"].default_matmul_precision(
            "highest"
        )
        return precise
    return nullcontext()


@contextmanager
def _torch_in_full_precision(kind: str) -> Iterator[None]:
    torch: Any = sys.modules["torch"]
    matmul = torch.backends.cuda.matmul
    found = getattr(matmul, "fp32_precision", "none")  # since torch 2.9
    cast = torch.amp.is_autocast_available(kind)
    with torch.autocast(kind, enabled=False) if cast else nullcontext():
        if found in ("ieee", "none"):
            yield
            return
        matmul.fp32_precision = "ieee"
        try:
            yield
        finally:
            matmul.fp32_precision = found


def to_host(x: Array) -> HostArray:
    """Copy a T-sized array to the host as float64.

    This is the one transfer that the core makes: the small solve is branchy, the standard has
    neither NNLS nor batched masks for it, and on a GPU it would be bound by kernel launches.
    """
    if compat.is_torch_array(x) or compat.is_cupy_array(x):
        return np.asarray(compat.to_device(x, "cpu"), dtype=np.float64)
    try:
        return np.asarray(x, dtype=np.float64)
    except (TypeError, ValueError, RuntimeError):
        # The standard has no name for the host; the default device is it, or is next to it.
        host = namespace(x).__array_namespace_info__().default_device()
        return np.asarray(compat.to_device(x, host), dtype=np.float64)


def from_host(x: HostArray, like: Array) -> Array:
    """Copy a T-sized host array to the library, device and dtype of `like`."""
    xp = namespace(like)
    narrow = x.astype(np.float64 if like.dtype == xp.float64 else np.float32)
    return narrow if xp is np else xp.asarray(narrow, device=device(like))
