"""Measuring the old gradients, or their one weighted sum if a method needs no more than that."""

from __future__ import annotations

from typing import Any

import array_api_compat as compat
import numpy as np
import numpy.typing as npt

from gradproj._arrays import Array, HostArray, from_host, to_host, widened
from gradproj._blocks import WIDE_BLOCK, cuts
from gradproj._measure import Measured, measure_entered, wide_layers
from gradproj._reduction import Reduction

# Where only the order of magnitude of the old gradients' lengths matters, they are estimated from
# the first columns of every stride: a sixteenth of a long layer, all of a short one.
_SAMPLE, _STRIDE = 1 << 10, 1 << 14


def measure_old(
    xp: Any, new: list[Array], old: list[Array], reduction: Reduction | None, precise: bool
) -> tuple[list[Array], Measured]:
    """Measure each layer's old gradients, or the one combination that the method needs of them.

    Returns
    -------
    rows : list of arrays (T, N_l) or (1, N_l)
        The rows that the coefficients will multiply. A combination is in float64 where float32
        would lose digits to cancellation.
    measured : Measured
        With products that are zero where only rounding is left of a combination.
    """
    wide = wide_layers(xp, new, precise)
    if reduction is None:
        return old, measure_entered(xp, new, old, wide)
    weights = reduction.weights
    if len(weights) != old[0].shape[0]:
        raise ValueError(
            f"reduce({old[0].shape[0]}) returned {len(weights)} weights: return one per old task"
        )
    task = int(weights.argmax())
    if weights[task] == 1 and np.count_nonzero(weights) == 1:
        rows = [G_l[task : task + 1, :] for G_l in old]
        return rows, measure_entered(xp, new, rows, wide)
    sums = [_weighted_sum(xp, G_l, weights, each) for G_l, each in zip(old, wide, strict=True)]
    rows, scales = [row for row, _ in sums], [scale for _, scale in sums]
    measured = measure_entered(xp, new, rows, wide)
    doubtful = reduction.doubtful(measured.products.C[:, 0, 0], scales)
    if doubtful.any():
        _sum_again(xp, new, old, reduction, np.flatnonzero(doubtful), rows, measured)
    return rows, measured


def _sum_again(
    xp: Any,
    new: list[Array],
    old: list[Array],
    reduction: Reduction,
    layers: npt.NDArray[np.int64],
    rows: list[Array],
    measured: Measured,
) -> None:
    """Replace the sums of some layers, in place, by sums in float64, or by zero if they cancel."""
    sums = [_weighted_sum(xp, old[layer], reduction.weights, True) for layer in layers]
    found = measure_entered(
        xp, [new[layer] for layer in layers], [row for row, _ in sums], [True] * len(sums)
    ).products
    epsilon = float(xp.finfo(new[0].dtype).eps)
    zero = reduction.cancels(found.C[:, 0, 0], [scale for _, scale in sums], epsilon)
    products, wide, unsafe = measured
    for k, layer in enumerate(layers):
        rows[layer], wide[layer], unsafe[layer] = sums[k][0], True, True
        products.C[layer] = 0.0 if zero[k] else found.C[k]
        products.h[layer] = 0.0 if zero[k] else found.h[k]
        products.tolerance[layer] = found.tolerance[k]


def _weighted_sum(xp: Any, G: Array, weights: HostArray, wide: bool) -> tuple[Array, float]:
    """Return weights @ G as a row (1, N), and the lengths of its terms added up.

    In float64 (`wide`) the lengths are exact. Otherwise they are estimated from a part of the
    columns: an estimate 1,000 times too small would still reveal a sum that is only rounding.
    """
    T, N = G.shape
    if not wide:
        row = from_host(weights, G) @ G
        return row[None, :], float(np.abs(weights) @ np.sqrt(_estimated_squares(xp, G)))
    squares, parts = np.zeros(T), []
    for cut in cuts(xp, T, N, WIDE_BLOCK):
        block = widened(xp, G[:, cut])
        here = np if isinstance(block, np.ndarray) else xp
        parts.append(from_host(weights, block) @ block)
        squares = squares + to_host(here.vecdot(block, block))
    row = parts[0] if len(parts) == 1 else here.concat(parts)
    return row[None, :], float(np.abs(weights) @ np.sqrt(squares))


def _estimated_squares(xp: Any, G: Array) -> HostArray:
    """Return the squared length of each row, estimated from a part of the columns."""
    T, N = G.shape
    if compat.is_dask_array(G):  # it cannot reshape chunks of unequal size
        return to_host(xp.vecdot(G, G))
    count = N // _STRIDE
    blocks = xp.reshape(G[:, : count * _STRIDE], (T, count, _STRIDE))[:, :, :_SAMPLE]
    rest = G[:, count * _STRIDE : min(count * _STRIDE + _SAMPLE, N)]
    squares: HostArray = to_host(xp.vecdot(blocks, blocks)).sum(1) + to_host(xp.vecdot(rest, rest))
    squares *= N / max(count * _SAMPLE + rest.shape[1], 1)
    return squares
