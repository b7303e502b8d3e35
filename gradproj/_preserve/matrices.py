"""Matrices of the size of a layer's inputs: dtypes, devices and eigenvalues."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import array_api_compat as compat
import numpy as np

from gradproj._arrays import (
    Array,
    bits,
    device,
    has_float64,
    namespace,
    to_host,
    widened,
)

# Eigenvalues up to this many rounding errors of ‖S‖ count as zero: S is a sum of products, and the
# eigenvalues are rounded too.
_ERRORS = 10
# Eigenvalues that are more negative than this part of ‖S‖ do not come from rounding in float32: the
# products may have been formed in float32 even if S is in float64. Products of 16 bits are off by
# 1e-3 and more.
_MOST_NEGATIVE = 1e-5


def at_least_float32(xp: Any, dtype: Any) -> Any:
    """Return the dtype, or float32 instead of a dtype of 16 bits."""
    return xp.float32 if bits(xp, dtype) == 16 else dtype


def in_32_bits(x: Array) -> Array:
    """Return an array of 16 bits in float32, and any other as it is."""
    xp = namespace(x)
    return xp.astype(x, xp.float32) if bits(xp, x.dtype) == 16 else x


def pieces(rows: Array, size: int) -> Iterator[Array]:
    """Cut (..., rows, in) into pieces of at most `size` rows; at least one, which may be empty."""
    count = rows.shape[-2]
    for start in range(0, max(count, 1), size):
        yield rows[..., start : min(start + size, count), :]


def wide(xp: Any, x: Array) -> Array:
    """Return an array in float64: where it is, or on the host if it cannot be decomposed there."""
    return to_host(x) if compat.is_dask_array(x) else widened(xp, x)


def widest(like: Array) -> Any:
    """Return float64, or float32 where there is no float64."""
    xp = namespace(like)
    return xp.float64 if has_float64(xp, like) else xp.float32


def real(x: Array) -> Array:
    """Return an array of integers as floating-point numbers; anything else is returned as it is."""
    if not hasattr(x, "dtype") or not compat.is_array_api_obj(x):
        return x
    xp = namespace(x)
    return xp.astype(x, widest(x)) if xp.isdtype(x.dtype, "integral") else x


def empty_rows(x: Array, leading: tuple[int, ...]) -> Array:
    """Return an array (*leading, 0, in) like `x` (..., in), in at least 32 bits."""
    xp = namespace(x)
    dtype = at_least_float32(xp, x.dtype)
    return xp.zeros((*leading, 0, x.shape[-1]), dtype=dtype, device=device(x))


def narrow(x: Array, like: Array, dtype: Any) -> Array:
    """Round an array in float64 to a dtype, in the library and on the device of `like`."""
    xp = namespace(like)
    if xp is not np and isinstance(x, np.ndarray | np.generic):
        host = np.asarray(x, dtype=np.float64 if dtype == xp.float64 else np.float32)
        return xp.asarray(host, dtype=dtype, device=device(like))
    return xp.astype(x, dtype, copy=False)


def transposed(x: Array) -> Array:
    """Swap the last two axes."""
    return namespace(x).matrix_transpose(x)


def identity(like: Array) -> Array:
    """Return the identity of the size and dtype of a square matrix."""
    return namespace(like).eye(like.shape[-1], dtype=like.dtype, device=device(like))


def norm(S: Array) -> Array:
    """Return the Frobenius norm of each matrix."""
    xp = namespace(S)
    return xp.sqrt(xp.sum(S * S, axis=(-2, -1)))


def resolution(size: Array, epsilon: float) -> Array:
    """Return, per matrix, the number up to which an eigenvalue counts as zero.

    `size` is the norm of S, and `epsilon` the rounding unit of the dtype in which S was given.
    """
    return _ERRORS * epsilon * size


def eigenpairs(S: Array, size: Array, epsilon: float) -> tuple[Array, Array]:
    """Return eigenvalues >= 0 in ascending order and eigenvectors as columns.

    Eigenvalues that are only rounding are set to zero; see :func:`resolution`.
    """
    values, vectors = namespace(S).linalg.eigh((S + transposed(S)) / 2)
    return nonnegative(values, size, epsilon), vectors


def nonnegative(values: Array, size: Array, epsilon: float) -> Array:
    """Return eigenvalues with small ones set to zero; raise if one is clearly negative."""
    xp = namespace(values)
    noise = resolution(size, epsilon)[..., None]
    if bool(xp.any(values < -max(_MOST_NEGATIVE, _ERRORS * epsilon) * size[..., None])):
        raise ValueError(
            f"S has the eigenvalue {float(xp.min(values)):.2g} and the largest is "
            f"{float(xp.max(values)):.2g}: second moments are positive semidefinite; form aᵀa in "
            "float32 or better, with autocast switched off"
        )
    return xp.where(values > noise, values, xp.zeros_like(values))


def is_positive_definite(S: Array) -> bool:
    """Whether all matrices have a Cholesky decomposition, by trying it.

    It takes a small part of the time that the eigenvalues take.
    """
    xp = namespace(S)
    try:
        L = xp.linalg.cholesky(S)
    except Exception as error:
        # NumPy and torch raise errors of this name, each of its own class.
        if "LinAlgError" in type(error).__name__:
            return False
        raise
    # Other libraries return NaN or, as CuPy, anything: check the product with a vector of ones.
    apart = xp.abs(L @ xp.sum(L, axis=-2)[..., None] - xp.sum(S, axis=-1)[..., None])
    allowed = S.shape[-1] * resolution(norm(S), float(xp.finfo(S.dtype).eps))
    right = bool(xp.all(apart <= allowed[..., None, None]))
    return right and bool(xp.all(xp.linalg.diagonal(L) > 0))
