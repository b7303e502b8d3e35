"""From the caller's arrays to the form in which they are computed, and back."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import array_api_compat as compat
import numpy as np

from gradproj._arrays.checks import check_alike, check_array
from gradproj._arrays.conversion import narrowed
from gradproj._arrays.libraries import Array, bits, namespace


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


_PLAIN = (np.dtype(np.float32), np.dtype(np.float64))


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


def _numpy_views(arrays: Sequence[Array]) -> list[Array] | None:
    """Return views of torch tensors, or None if NumPy cannot read the memory of one of them."""
    torch: Any = sys.modules.get("torch")
    if torch is None or any(type(x) is not torch.Tensor for x in arrays):
        return None
    try:
        return [x.numpy() for x in arrays]
    except (RuntimeError, TypeError):
        return None


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


def _to_torch(w: Array) -> Array:
    return sys.modules["torch"].asarray(w, device="cpu")


def _unchanged(w: Array) -> Array:
    return w
