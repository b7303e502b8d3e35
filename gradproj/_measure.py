"""The two steps that touch N numbers: measure the inner products, combine the gradients."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from gradproj._arrays import (
    Array,
    HostArray,
    SameArray,
    device,
    enter,
    from_host,
    full_precision,
    has_float64,
    to_host,
    widened,
)
from gradproj._errors import NotFiniteError

# Columns a block. One block of 20 float32 rows stays near the processor's second-level cache, and a
# float32 sum over so few columns is good to about 5e-8; the blocks are added up in float64.
_BLOCK = 1 << 14
# One row alone has no dependence between rows to lose: longer blocks are precise enough.
_BLOCK_OF_ONE = 1 << 17
# A GPU pays for each block with kernel launches: very long gradients get longer blocks there.
_MOST_BLOCKS = 256

# OpenBLAS gives products of somewhat more multiplications than this to several threads. For ours
# that is no gain, and a loss where they contend with torch's threads or with other programs: a step
# then takes twice to a hundred times as long. So they are cut into pieces that stay below it, as
# long as those have some width.
_ONE_THREAD = 3 << 17
_LEAST_WIDTH = 256

# Up to this many rows, T products of a block with one of its rows take half to nine tenths of the
# time of one matrix product, whose kernels are made for more rows. With more, the products of a
# whole block would go to several threads.
_FEW_ROWS = _ONE_THREAD // _BLOCK

# Float32 gradients of up to so many numbers are measured in float64: next to no time for biases and
# norms, and a few directions that the old tasks nearly use up are told apart by what float32 loses.
_SMALL = 1 << 10

# Where the largest coefficient is outside this range, it is too close to where float32 overflows or
# goes subnormal: old gradients that are next to nothing beside the new one need such, or the new
# one beside them. The layer is then combined in float64.
SAFE_COEFFICIENT = (1e-30, 1e30)

# Squared norms outside this range come too close to where float32 overflows or goes subnormal;
# the layer is then measured again in float64.
SAFE_SQUARE = (1e-24, 1e36)


def measure(g: Array, G: Array, *, precise: bool = True) -> tuple[HostArray, HostArray]:
    r"""Measure the inner products that every method works from.

    .. math:: C = G G^\top \in \mathbb{R}^{T \times T}, \qquad h = G g \in \mathbb{R}^T

    with the old tasks' gradients as the rows of `G`. It is the first of three steps (measure,
    :meth:`Method.solve`, :func:`combine`) for people whose gradients do not lie in one place: inner
    products add up, so gradients that are sharded over machines or streamed layer by layer are
    measured piece by piece and only these T·(T+1) numbers are summed.

    Parameters
    ----------
    g : array (N,)
        Gradient of the new task.
    G : array (T, N)
        Gradients of the old tasks, one a row.
    precise : bool
        Form the products of float32 gradients in float64. Without it they take half the time and
        are good to about 5e-8 of the squared norms: tell :meth:`Method.solve` so, with
        ``tolerance=1e-6``, or old gradients that are nearly equal give coefficients made of
        rounding.

    Returns
    -------
    C, h : numpy.ndarray of float64
        On the host, whatever the library and device of the gradients.

    Examples
    --------
    >>> import numpy as np
    >>> import gradproj as gp
    >>> C, h = gp.measure(np.asarray([1.0, 0.0]), np.asarray([[0.0, 2.0], [-1.0, 1.0]]))
    >>> C
    array([[4., 2.],
           [2., 2.]])
    >>> h
    array([ 0., -1.])
    """
    pair = enter(g, G)
    C, h, _ = measure_layers(pair.xp, [pair.g], [pair.G], precise, [""])
    return C[0], h[0]


def combine(g: SameArray, G: Array, c: npt.ArrayLike, *, precise: bool = True) -> SameArray:
    r"""Combine the gradients into the update.

    .. math:: w = g + G^\top c

    It is the last of the three steps (:func:`measure`, :meth:`Method.solve`, combine).

    Parameters
    ----------
    g : array (N,)
        Gradient of the new task.
    G : array (T, N)
        Gradients of the old tasks, one a row.
    c : array_like (T,)
        The coefficients that a method found.
    precise : bool
        Add up float32 gradients in float64 and round once: about twice the time, and needed where
        the old gradients are nearly equal and the coefficients large.

    Returns
    -------
    w : array (N,)
        A new array, in the library, dtype and device of `g`.

    Examples
    --------
    >>> import numpy as np
    >>> import gradproj as gp
    >>> gp.combine(np.asarray([1.0, 0.0]), np.asarray([[0.0, 2.0], [-1.0, 1.0]]), [0.0, 0.5])
    array([0.5, 0.5])
    """
    pair = enter(g, G)
    coefficients = np.asarray(c, dtype=np.float64)
    if coefficients.shape != (pair.G.shape[0],):
        raise ValueError(
            f"c has shape {coefficients.shape}: it needs one coefficient a row of G, "
            f"({pair.G.shape[0]},)"
        )
    if not np.isfinite(coefficients).all():
        raise NotFiniteError("c holds NaN or infinity: check the inner products it comes from")
    w: SameArray = pair.leave(combine_layer(pair.xp, pair.g, pair.G, coefficients, precise))
    return w


def measure_layers(
    xp: Any, g: list[Array], G: list[Array], precise: bool, labels: list[str]
) -> tuple[HostArray, HostArray, list[bool]]:
    """Measure layers of one T: C (L, T, T), h (L, T), and which layers needed float64."""
    # Overflow is no accident here: it is looked for below.
    with np.errstate(over="ignore", invalid="ignore"), full_precision(g[0]):
        C, h, wide = _measure_layers(xp, g, G, precise)
    _check_finite(C, h, labels)
    return C, h, wide


def _measure_layers(
    xp: Any, g: list[Array], G: list[Array], precise: bool
) -> tuple[HostArray, HostArray, list[bool]]:
    """Measure layers, again in float64 where squares leave the range of float32."""
    narrow = g[0].dtype != xp.float64
    wide = [narrow and (precise or g_l.shape[0] <= _SMALL) for g_l in g]
    blocks = [_products(xp, g_l, G_l, wide_l) for g_l, G_l, wide_l in zip(g, G, wide, strict=True)]
    C, h = (stack_on_host(xp, parts) for parts in zip(*blocks, strict=True))
    squares = np.diagonal(C, axis1=1, axis2=2)
    products = np.abs(h).max(1, initial=0.0)
    low, high = SAFE_SQUARE
    # The usual case takes four comparisons; a NaN fails them.
    usual = squares.size and squares.min() > low and squares.max() < high
    if usual and products.min() > low and products.max() < high:
        return C, h, wide
    if narrow and not all(wide):
        safe = ((squares > low) & (squares < high)).all(1) & (products > low) & (products < high)
        for layer in np.flatnonzero(~safe & ~np.asarray(wide)):
            if not _only_zeros(xp, g[layer], G[layer], squares[layer], products[layer]):
                C[layer], h[layer] = map(to_host, _products(xp, g[layer], G[layer], True))
                wide[layer] = True
    return C, h, wide


def stack_on_host(xp: Any, parts: Sequence[Array]) -> HostArray:
    """Copy T-sized arrays, one a layer, to the host as one, so that a GPU is waited for once."""
    if len(parts) == 1:
        return to_host(parts[0])[None]
    return np.stack(parts) if isinstance(parts[0], np.ndarray) else to_host(xp.stack(parts))


def combine_layer(xp: Any, g: Array, G: Array, c: HostArray, precise: bool) -> Array:
    """Return g + cᵀG as a new array."""
    if not np.any(c):
        return xp.asarray(g, copy=True)
    low, high = SAFE_COEFFICIENT
    precise = precise or not low < np.abs(c).max() < high
    if precise and g.dtype != xp.float64:
        return _combined_in_float64(xp, g, G, c)
    # The product of a vector with a single row is oddly slow in BLAS.
    if len(c) == 1:
        w = float(c[0]) * G[0, :]
    else:
        with full_precision(g):
            w = from_host(c, g) @ G
    w += g
    return w


def _combined_in_float64(xp: Any, g: Array, G: Array, c: HostArray) -> Array:
    """Return g + cᵀG, rounded once, block by block."""
    if xp is np:
        w = np.empty_like(g)
        for cut in cuts(xp, *G.shape):
            w[cut] = c @ G[:, cut].astype(np.float64) + g[cut]
        return w
    here = has_float64(xp, device(g))
    wide = xp.asarray(c, device=device(g)) if here else c
    parts = [wide @ widened(xp, G[:, cut]) + widened(xp, g[cut]) for cut in cuts(xp, *G.shape)]
    if not here:
        narrow = np.concatenate(parts).astype(np.float32)
        return xp.asarray(narrow, dtype=g.dtype, device=device(g))
    return xp.concat([xp.astype(part, g.dtype) for part in parts])


def _products(xp: Any, g: Array, G: Array, precise: bool) -> tuple[Array, Array]:
    """Return G Gᵀ and G g, float64, on the device of the gradients if it has float64."""
    C = h = None
    for cut in cuts(xp, *G.shape):
        rows, new = G[:, cut], g[cut]
        if precise:
            rows, new = widened(xp, rows), widened(xp, new)
        if xp is np:
            rows, new = _laid_out(rows), np.ascontiguousarray(new)
        C_cut, h_cut = widened(xp, _gram(xp, rows)), widened(xp, rows @ new)
        C, h = (C_cut, h_cut) if C is None else (C + C_cut, h + h_cut)
    return C, h


def _laid_out(rows: HostArray) -> HostArray:
    """Return the rows as BLAS takes them: each in one piece, one after the other.

    Others, as of a transpose or with a step, NumPy multiplies number by number: in up to fifty
    times the time, and with sums of float32 that are a hundred times less precise.
    """
    along, across = rows.strides[1], rows.strides[0]
    straight = along == rows.itemsize and across >= along * rows.shape[1]
    return rows if straight else np.ascontiguousarray(rows)


def _only_zeros(xp: Any, g: Array, G: Array, squares: HostArray, product: float) -> bool:
    """Whether nothing but gradients that are zero, as of unused heads, took us out of the range."""
    low, high = SAFE_SQUARE
    rows = np.flatnonzero(squares == 0)
    if not ((squares == 0) | ((squares > low) & (squares < high))).all():
        return False
    if any(bool(xp.any(G[int(row), :] != 0)) for row in rows):
        return False
    unused = len(rows) == len(squares) or (product == 0 and not bool(xp.any(g != 0)))
    return unused or low < product < high


def _gram(xp: Any, rows: Array) -> Array:
    """Return rows @ rowsᵀ; on the CPU in the form that its BLAS does fastest."""
    T, N = rows.shape
    if xp is not np or T == 1:
        return rows @ rows.T
    if T <= _FEW_ROWS:
        C = np.empty((T, T), dtype=rows.dtype)
        for i in range(T):
            C[i, : i + 1] = C[: i + 1, i] = rows[: i + 1] @ rows[i]
        return C
    width = _width(T)
    if width < _LEAST_WIDTH or width >= N:
        return rows @ rows.T
    count = N // width
    stack = rows[:, : count * width].reshape(T, count, width).transpose(1, 0, 2)
    C = (stack @ stack.transpose(0, 2, 1)).sum(0, dtype=np.float64)
    rest = rows[:, count * width :]
    return C + rest @ rest.T if rest.shape[1] else C


def _width(T: int) -> int:
    """Columns of a piece of T rows whose product with itself one thread does alone."""
    return _ONE_THREAD // T**2


def cuts(xp: Any, T: int, N: int) -> Iterator[slice]:
    """Cut N columns of T rows into blocks; one empty block if there are none."""
    block = _BLOCK if T > 1 else _BLOCK_OF_ONE
    if xp is not np:
        block = max(block, -(-N // _MOST_BLOCKS))
    elif T > _FEW_ROWS and _width(T) >= _LEAST_WIDTH:
        # The products with g stay on one thread too, and only the last block has a rest.
        block = _ONE_THREAD // T // _width(T) * _width(T)
    return (slice(start, min(start + block, N)) for start in range(0, max(N, 1), block))


def _check_finite(C: HostArray, h: HostArray, labels: list[str]) -> None:
    """Raise for the first layer whose products are not finite: no extra pass over the gradients.

    A NaN or an infinity in row i of G shows in C[i, i]; one in g shows in every entry of h.
    """
    if np.isfinite(C).all() and np.isfinite(h).all():
        return
    for layer in np.flatnonzero(~(np.isfinite(C).all((1, 2)) & np.isfinite(h).all(1))):
        squares = np.diagonal(C[layer])
        rows = np.flatnonzero(~np.isfinite(squares))
        name = f"G{labels[layer]} (row {rows[0]})" if len(rows) else f"g{labels[layer]}"
        raise NotFiniteError(
            f"{name} holds NaN, infinity or numbers too large to square: skip this step, "
            "or lower the learning rate or the loss scale"
        )
