"""The in-sized matrices of this package: checks, float64, and their eigenvalues."""

from __future__ import annotations

from typing import Any

import array_api_compat as compat
import numpy as np

from gradproj._arrays import (
    Array,
    bits,
    check_array,
    device,
    library,
    namespace,
    to_host,
    widened,
)
from gradproj._errors import NotFiniteError

# Eigenvalues up to this many rounding errors of ‖S‖ cannot be told from zero: S is a sum of
# products, and the eigenvalues are rounded too.
_ERRORS = 10
# Eigenvalues that are more negative than this, in units of the former, do not come from rounding.
_MOST_NEGATIVE = 10


def check_matrix(name: str, x: Array, wanted: str) -> Any:
    """Return the namespace of an array with at least two axes."""
    check_array(name, x)
    if x.ndim < 2:
        raise ValueError(f"{name} has shape {tuple(x.shape)}: expected {wanted}")
    return namespace(x)


def check_finite(xp: Any, name: str, x: Array) -> None:
    """Raise if an array contains NaN or infinity."""
    if not bool(xp.all(xp.isfinite(x))):
        raise NotFiniteError(f"{name} contains NaN or infinity: skip this batch or step")


def check_place(name: str, x: Array, other: str, like: Array) -> None:
    """Raise if two arrays differ in library or device."""
    if namespace(x) is not namespace(like):
        raise TypeError(
            f"{other} is from {library(like)} and {name} is from {library(x)}: pass arrays of one "
            "library"
        )
    if device(x) != device(like):
        raise ValueError(
            f"{other} is on device {device(like)} and {name} is on {device(x)}: move both to one "
            "device"
        )


def at_least_float32(xp: Any, dtype: Any) -> Any:
    """Return the dtype, or float32 instead of a dtype of 16 bits."""
    return xp.float32 if bits(xp, dtype) == 16 else dtype


def wide(xp: Any, x: Array) -> Array:
    """Return an array in float64: where it is, or on the host if it cannot be decomposed there."""
    return to_host(x) if compat.is_dask_array(x) else widened(xp, x)


def narrow(x: Array, like: Array, dtype: Any) -> Array:
    """Round an array in float64 to a dtype, in the library and on the device of `like`."""
    xp = namespace(like)
    if xp is not np and isinstance(x, np.ndarray):
        host = x.astype(np.float64 if dtype == xp.float64 else np.float32)
        return xp.asarray(host, dtype=dtype, device=device(like))
    return xp.astype(x, dtype, copy=False)


def transposed(x: Array) -> Array:
    """Swap the last two axes."""
    return namespace(x).matrix_transpose(x)


def identity(like: Array) -> Array:
    """Return the identity of the size and dtype of a square matrix."""
    return namespace(like).eye(like.shape[-1], dtype=like.dtype, device=device(like))


def resolution(S: Array, epsilon: float) -> Array:
    """Return, per matrix, the size below which an eigenvalue cannot be told from zero.

    `epsilon` is that of the dtype in which S was given.
    """
    xp = namespace(S)
    return _ERRORS * epsilon * xp.sqrt(xp.sum(S * S, axis=(-2, -1)))


def eigenpairs(S: Array, noise: Array) -> tuple[Array, Array]:
    """Return eigenvalues >= 0 in ascending order and eigenvectors as columns.

    Eigenvalues below `noise`, one number per matrix, are set to zero.
    """
    xp = namespace(S)
    values, vectors = xp.linalg.eigh((S + transposed(S)) / 2)
    noise = noise[..., None]
    if bool(xp.any(values < -_MOST_NEGATIVE * noise)):
        raise ValueError(
            f"S has the eigenvalue {float(xp.min(values)):.2g} and the largest is "
            f"{float(xp.max(values)):.2g}: second moments are positive semidefinite; form aᵀa in "
            "float32 or better, with autocast switched off"
        )
    return xp.where(values > noise, values, xp.zeros_like(values)), vectors
