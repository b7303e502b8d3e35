"""The device and the precision in which a library computes."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import array_api_compat as compat
import numpy as np

from gradproj._arrays.libraries import Array

_EXACT = ("ieee", "none")


def computing(x: Array, *, native: bool = False) -> AbstractContextManager[object]:
    """Return the context that every computation with `x` needs.

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


def _float32_products(torch: Any) -> str:
    """Return how CUDA forms float32 products; the setting exists since torch 2.9."""
    found: str = getattr(torch.backends.cuda.matmul, "fp32_precision", "none")
    return found


@contextmanager
def _cupy_in_full_precision() -> Iterator[None]:
    # CuPy has no public name for the setting of the environment variable CUPY_TF32.
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
