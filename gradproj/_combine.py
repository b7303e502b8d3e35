"""The last of the three steps: combine the gradients into the update."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from gradproj._arrays import (
    Array,
    HostArray,
    SameArray,
    as_numbers,
    computing,
    device,
    enter,
    from_host,
    has_float64,
    overflow,
    stack_on_host,
    widened,
)
from gradproj._blocks import WIDE_BLOCK, cuts
from gradproj._errors import NotFiniteError
from gradproj._measure import enter_layers, wide_layers
from gradproj._method import Solution

# float32 coefficients outside this range are too close to overflow or to the subnormal numbers.
# They occur where old and new gradients differ extremely in length. Such layers use float64.
_SAFE_COEFFICIENT = (1e-30, 1e30)

# Columns per block on the CPU: a block of the result stays in the second-level cache.
_BLOCK = 1 << 16


def combine(
    g: SameArray,
    G: Array,
    c: npt.ArrayLike,
    *,
    scale: float = 1.0,
    precise: bool = True,
    out: SameArray | None = None,
) -> SameArray:
    r"""Combine the gradients into the update.

    .. math:: w = s\, g + G^\top c

    This is the last of the three steps :func:`measure`, :meth:`Method.solve` and combine.

    Parameters
    ----------
    g : array (N,)
        Gradient of the new task.
    G : array (T, N)
        Gradients of the old tasks, one per row.
    c : array_like (T,)
        Coefficients of the old gradients, for example ``solution.coefficients``.
    scale : float
        Factor s of the new gradient, for example ``solution.scale``.
    precise : bool
        Add up float32 gradients in float64 and round once. It takes about twice the time and is
        needed where old gradients are nearly equal and the coefficients large.
    out : array (N,), optional
        Writable array that receives the update; it may be `g` itself.

    Returns
    -------
    w : array (N,)
        `out`, or a new array in the library, dtype and device of `g`.

    Examples
    --------
    >>> import numpy as np
    >>> import gradproj as gp
    >>> gp.combine(np.asarray([1.0, 0.0]), np.asarray([[0.0, 2.0], [-1.0, 1.0]]), [0.0, 0.5])
    array([0.5, 0.5])
    """
    coefficients, factor = as_numbers("c", c), as_numbers("scale", scale)
    with computing(g):
        pair = enter({"g": g, "G": G})
        T = pair.arrays[1].shape[0]
        if coefficients.shape != (T,):
            raise ValueError(
                f"c has shape {coefficients.shape}: expected one coefficient per row of G, ({T},)"
            )
        if not (np.isfinite(coefficients).all() and np.isfinite(factor).all()):
            raise NotFiniteError(
                "c or scale contains NaN or infinity: check the inner products that it comes from"
            )
        where = None if out is None else enter({"g": g, "out": out}).arrays[1]
        new, old = pair.arrays
        w = combined(pair.xp, new, old, coefficients, float(factor), precise, where)
        check_overflow(pair.xp, [w])
        return _left(pair.leave, w, where, out)


def combine_layers(
    g: Iterable[SameArray],
    G: Iterable[Array],
    solution: Solution,
    *,
    precise: bool = False,
    out: Iterable[SameArray] | None = None,
) -> list[SameArray]:
    r"""Combine the gradients of each layer on its own.

    .. math:: w^{(l)} = s^{(l)} g^{(l)} + G^{(l)\top} c^{(l)}, \qquad l = 1, \dots, L

    Parameters
    ----------
    g : iterable of arrays (N_l,)
        Gradient of the new task, layer by layer.
    G : iterable of arrays (T, N_l)
        Gradients of the old tasks, layer by layer.
    solution : Solution
        With a leading layer axis, as :meth:`Method.solve` returns it for
        :func:`measure_layers`.
    precise : bool
        As in :func:`combine`. Layers of up to 1,024 numbers are added up in float64 in any case.
    out : iterable of arrays (N_l,), optional
        Writable arrays that receive the updates; they may be the arrays of `g`.

    Returns
    -------
    w : list of arrays (N_l,)
        `out`, or new arrays in the library, dtype and device of `g`.

    Examples
    --------
    >>> import numpy as np
    >>> import gradproj as gp
    >>> g = [np.asarray([1.0, 0.0]), np.asarray([3.0])]
    >>> G = [np.asarray([[-1.0, 1.0]]), np.asarray([[2.0]])]
    >>> solution = gp.GEM().solve(gp.measure_layers(g, G))
    >>> gp.combine_layers(g, G, solution)
    [array([0.5, 0.5]), array([3.])]
    """
    g, G = list(g), list(G)
    if not isinstance(solution, Solution):
        raise TypeError(
            f"solution is a {type(solution).__name__}: pass a gp.Solution, for example "
            "gp.GEM().solve(gp.measure_layers(g, G))"
        )
    targets: list[Any] = [None] * len(g) if out is None else list(out)
    with computing(g[0] if g else None):
        layers, labels = enter_layers(g, G)
        expected = (len(g), layers[0].arrays[1].shape[0] if layers else 0)
        if solution.coefficients.shape != expected:
            raise ValueError(
                f"solution has coefficients of shape {solution.coefficients.shape}: expected one "
                f"per layer and old task, {expected}"
            )
        if len(targets) != len(g):
            raise ValueError(f"out has {len(targets)} layers and g has {len(g)}: expected as many")
        where = [
            None if target is None else enter({f"g{label}": g_l, f"out{label}": target}).arrays[1]
            for label, g_l, target in zip(labels, g, targets, strict=True)
        ]
        if not layers:
            return []
        xp, new = layers[0].xp, [layer.arrays[0] for layer in layers]
        updates = [
            combined(xp, *layer.arrays, *each)
            for layer, *each in zip(
                layers,
                solution.coefficients,
                solution.scale.tolist(),
                wide_layers(xp, new, precise),
                where,
                strict=True,
            )
        ]
        check_overflow(xp, updates)
        return [
            _left(layer.leave, w, inside, target)
            for layer, w, inside, target in zip(layers, updates, where, targets, strict=True)
        ]


def _left(leave: Any, w: Array, inside: Array | None, out: SameArray | None) -> SameArray:
    """Return an update in the caller's form, in `out` if there is one."""
    found: SameArray = leave(w) if out is None or w is not inside else out
    if out is None or found is out:
        return found
    try:
        out[...] = found  # type: ignore[index]
    except TypeError as error:
        raise TypeError(f"out cannot be written to: {error}") from error
    return out


def combined(
    xp: Any,
    g: Array,
    G: Array,
    c: HostArray,
    scale: float,
    wide: bool,
    out: Array | None = None,
) -> Array:
    """Return s g + cᵀG, in `out` if the library is NumPy and it has the dtype of g."""
    largest = float(np.abs(c).max(initial=0.0))
    if largest == 0 and scale == 1:
        return g if out is not None and out is g else xp.asarray(g, copy=True)
    low, high = _SAFE_COEFFICIENT
    narrow = g.dtype != xp.float64
    wide = narrow and (wide or not (largest == 0 or low < largest < high))
    if xp is np:
        return _combined_by_numpy(g, G, c, scale, wide, out)
    if wide:
        return _combined_in_float64(xp, g, G, c, scale)
    w = float(c[0]) * G[0, :] if len(c) == 1 else from_host(c, g) @ G
    return w + (g if scale == 1 else scale * g)


def _combined_by_numpy(
    g: HostArray, G: HostArray, c: HostArray, scale: float, wide: bool, out: HostArray | None
) -> HostArray:
    """Combine block by block, which needs no more memory than the result."""
    w = np.empty_like(g) if out is None or out.dtype != g.dtype else out
    direct = w is not out and not wide
    factors = c if wide else c.astype(g.dtype)
    T, N = G.shape
    for cut in cuts(np, T, N, WIDE_BLOCK) if wide else _cuts(N):
        rows, new = G[:, cut], g[cut]
        if wide:
            rows, new = rows.astype(np.float64), new.astype(np.float64)
        if T == 1:  # BLAS is slow for the product of a vector with a single row
            part = np.multiply(rows[0], factors[0], out=w[cut] if direct else None)
        else:
            part = np.matmul(factors, rows, out=w[cut] if direct else None)
        part += new if scale == 1 else scale * new
        if not direct:
            w[cut] = part
    return w


def _cuts(N: int) -> Iterator[slice]:
    return (slice(start, min(start + _BLOCK, N)) for start in range(0, N, _BLOCK))


def _combined_in_float64(xp: Any, g: Array, G: Array, c: HostArray, scale: float) -> Array:
    """Return s g + cᵀG, rounded once, block by block."""
    here = has_float64(xp, g)
    factors = xp.asarray(c, device=device(g)) if here else c
    parts = [
        factors @ widened(xp, G[:, cut]) + scale * widened(xp, g[cut]) for cut in cuts(xp, *G.shape)
    ]
    if not here:
        narrow = np.concatenate(parts).astype(np.float32)
        return xp.asarray(narrow, dtype=g.dtype, device=device(g))
    return xp.concat([xp.astype(part, g.dtype) for part in parts])


def check_overflow(xp: Any, updates: Sequence[Array]) -> None:
    """Raise if an update contains infinity: its gradients were finite, so it has overflowed."""
    sums = [xp.sum(w) for w in updates]
    found = sums if xp is np else stack_on_host(xp, sums).tolist()
    for total, w in zip(found, updates, strict=True):  # finite numbers may have an infinite sum
        if not math.isfinite(total) and not bool(xp.all(xp.isfinite(w))):
            raise overflow(w.dtype)
