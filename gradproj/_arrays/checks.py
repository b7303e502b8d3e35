"""The checks on arrays that a caller passes."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence

import array_api_compat as compat
import numpy as np

from gradproj._arrays.libraries import Array, bits, device, library, namespace


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
                f"{name} is traced by JAX (jit, vmap or grad) and has no values yet, but "
                "gradproj checks them and solves small problems on the host: call it outside of "
                "the transformation, or through jax.pure_callback"
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


def _article(word: str) -> str:
    return "an" if word[0] in "aeiou" else "a"
