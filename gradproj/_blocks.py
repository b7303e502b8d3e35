"""Matrix products over blocks of columns, in the form that BLAS computes fastest."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import Any

import numpy as np

from gradproj._arrays import Array, HostArray, namespace, widened

# Columns per block. Blocks are multiplied in their own dtype and added up in float64, so that the
# error of a float32 sum does not grow with N.
_BLOCK = 1 << 16
# A single row is added up in short dot products anyway. Two vectors of this length fit into the
# second-level cache.
_ROW_BLOCK = 1 << 17
# Blocks that are converted to float64 first are copies, so they are shorter.
WIDE_BLOCK = 1 << 14
# On a GPU every block costs kernel launches: very long gradients get longer blocks there.
_MOST_BLOCKS = 256
# Columns per float32 dot product of two vectors. BLAS adds up a longer one with few partial sums:
# for 65,536 equal numbers it was off by 3e-5 with AVX2 and by 6e-5 with SSE. It cuts the product of
# several rows and a vector into pieces of this length by itself.
_DOT = 1 << 12

# OpenBLAS gives products of somewhat more multiplications than this to several threads. They do not
# get faster from it, and much slower (measured: 2 to 100 times) where the threads compete with
# torch's or with other processes. So larger products are cut into pieces below it.
_ONE_THREAD = 3 << 17
_LEAST_WIDTH = 256

# The last rows of the Gram matrix, up to this number, are faster as matrix-vector products.
_FEW_ROWS = 11


def _rows_per_product() -> int:
    """Return how many rows of the Gram matrix are multiplied with the rows below them at a time.

    Groups of 8 rows need little more than half of the multiplications. OpenBLAS profits from that
    where it has kernels for small matrices: 0.75 of the time of `G @ G.T` at T = 20. With its other
    kernels, such as those for AVX2, they take 1.5 times as long, and large groups 1.05 times.
    """
    small = ("SkylakeX", "Cooperlake", "SapphireRapids")
    return 8 if blas_kernels() in small else 24


def blas_kernels() -> str:
    """Return the processor for which NumPy's OpenBLAS computes, or "" with any other BLAS."""
    try:
        core: Any = np._core  # type: ignore[attr-defined]
        library = ctypes.CDLL(core._multiarray_umath.__file__)
    except (AttributeError, OSError):
        return ""
    for name in ("scipy_openblas_get_corename64_", "openblas_get_corename"):
        if hasattr(library, name):
            function = getattr(library, name)
            function.restype = ctypes.c_char_p
            return str(function().decode())
    return ""


_GROUP = _rows_per_product()


def cuts(xp: Any, T: int, N: int, most: int | None = None) -> Iterator[slice]:
    """Cut N columns of T rows into blocks of at most `most`; one empty block if N is 0."""
    if most is None:
        most = _ROW_BLOCK if T == 1 else _BLOCK
    if xp is not np:
        block = max(most, -(-N // _MOST_BLOCKS))
    elif T > _FEW_ROWS and (width := _width(T)) >= _LEAST_WIDTH:
        # Products with one vector stay on one thread too, and only the last block has a remainder.
        block = max(min(_ONE_THREAD // T, most) // width, 1) * width
    else:
        block = min(most, max(_ONE_THREAD // max(T, 1), _LEAST_WIDTH))
    return (slice(start, min(start + block, N)) for start in range(0, max(N, 1), block))


def gram_and_product(xp: Any, rows: Array, new: Array) -> tuple[Array, Array, Array]:
    """Return rows @ rowsᵀ, rows @ new and new · new in float64, for one block."""
    if xp is np:
        rows, new = _laid_out(rows), np.ascontiguousarray(new)
    square = _dot(xp, new, new)
    if rows.shape[0] == 1:
        row = rows[0, :]
        C, h = _dot(xp, row, row), _dot(xp, row, new)
        return namespace(C).reshape(C, (1, 1)), namespace(h).reshape(h, (1,)), square
    C = _gram(rows) if xp is np else widened(xp, rows @ rows.T)
    return C, widened(xp, rows @ new), square


def _dot(xp: Any, a: Array, b: Array) -> Array:
    """Return a · b in float64 as the sum of short dot products in the vectors' own dtype."""
    end = a.shape[0] // _DOT * _DOT
    total = widened(xp, xp.vecdot(a[end:], b[end:]))
    if end:
        short = (xp.reshape(x[:end], (-1, _DOT)) for x in (a, b))
        parts = widened(xp, xp.vecdot(*short))
        total = total + namespace(parts).sum(parts)
    return total


def _laid_out(rows: HostArray) -> HostArray:
    """Return rows of which each is contiguous and starts after the one before.

    NumPy multiplies any other layout number by number: up to fifty times slower, and with float32
    sums that are a hundred times less accurate.
    """
    along, across = rows.strides[1], rows.strides[0]
    straight = along == rows.itemsize and across >= along * rows.shape[1]
    return rows if straight else np.ascontiguousarray(rows)


def _gram(rows: HostArray) -> HostArray:
    """Return rows @ rowsᵀ of a block in float64."""
    T, N = rows.shape
    C = np.empty((T, T))
    start = 0
    if T > _FEW_ROWS:
        width = min(_width(T), N)
        if width < _LEAST_WIDTH:
            return (rows @ rows.T).astype(np.float64)
        count = N // width
        stack = rows[:, : count * width].reshape(T, count, width).transpose(1, 0, 2)
        across = stack.transpose(0, 2, 1)
        rest = rows[:, count * width :]
        while T - start > _FEW_ROWS:
            group = slice(start, start + _GROUP)
            part = (stack[:, group] @ across[:, :, start:]).sum(0, dtype=np.float64)
            if rest.shape[1]:
                part += rest[group] @ rest[start:].T
            C[group, start:] = part
            C[start:, group] = part.T
            start += _GROUP
    if start < T:
        C[start, start] = _dot(np, rows[start], rows[start])
    for i in range(start + 1, T):
        C[i, start : i + 1] = C[start : i + 1, i] = rows[start : i + 1] @ rows[i]
    return C


def _width(T: int) -> int:
    """Return how many columns the product of a group with T rows may have on one thread."""
    return _ONE_THREAD // (min(_GROUP, T) * T)
