"""The fast path: measure the inner products, solve T-sized problems, combine."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, overload

import numpy as np
import numpy.typing as npt

from gradproj._arrays import (
    Array,
    Entered,
    HostArray,
    SameArray,
    computing,
    enter,
    from_host,
    to_host,
    widened,
)
from gradproj._blocks import WIDE_BLOCK, cuts
from gradproj._combine import check_overflow, combined
from gradproj._method import Method, Solution, solve_checked
from gradproj._methods.decomposed import Decomposed
from gradproj._products import (
    Measured,
    Products,
    check_finite,
    enter_layers,
    fitting_factors,
    measure_entered,
    wide_layers,
)
from gradproj._reduction import Reduction

# Where only the order of magnitude of the old gradients' lengths matters, they are estimated from
# the first columns of every stride: a sixteenth of a long layer, all of a short one.
_SAMPLE, _STRIDE = 1 << 10, 1 << 14


@dataclass(frozen=True, eq=False)  # arrays have no single answer to ==
class Projection:
    r"""The update and its diagnostics, as ``full_output=True`` returns them.

    Attributes
    ----------
    update : array (N,), or list of arrays
        The solution :math:`w = s\, g + G^\top c`.
    coefficients, rank, multiplier, corrected, scale
        As in :class:`Solution`, on the host; with a leading layer axis from :func:`project_layers`.

    Examples
    --------
    >>> import numpy as np
    >>> import gradproj as gp
    >>> g, G = np.asarray([1.0, 0.0]), np.asarray([[-2.0, 2.0]])
    >>> result = gp.project(g, G, full_output=True)
    >>> result.update, result.multiplier, result.corrected
    (array([0.5, 0.5]), 0.25, True)
    """

    update: Any
    coefficients: HostArray
    rank: Any
    multiplier: Any
    corrected: Any
    scale: Any


@overload
def project(
    g: SameArray,
    G: Array,
    method: Method = ...,
    *,
    full_output: Literal[False] = ...,
    precise: bool = ...,
) -> SameArray: ...
@overload
def project(
    g: Array, G: Array, method: Method = ..., *, full_output: Literal[True], precise: bool = ...
) -> Projection: ...
@overload
def project(
    g: SameArray, G: Array, method: Method = ..., *, full_output: bool, precise: bool = ...
) -> SameArray | Projection: ...
def project(
    g: SameArray,
    G: Array,
    method: Method = Decomposed(),  # noqa: B008 (frozen)
    *,
    full_output: bool = False,
    precise: bool = False,
) -> SameArray | Projection:
    r"""Change the new gradient as little as the method's constraints allow.

    .. math:: \min_w \tfrac12 \|w - g\|^2 \quad \text{s.t. the constraints of the method on } G

    The solution is :math:`w = g + G^\top c`. The gradients are read only through the inner products
    :math:`G G^\top` and :math:`G g`; the coefficients c come from a T-sized problem on the host.

    Parameters
    ----------
    g : array (N,)
        Gradient of the new task.
    G : array (T, N)
        Gradients of the old tasks, one per row. They are not changed, and not copied unless they
        have 16 bits.
    method : Method
        :class:`Decomposed`, :class:`GEM`, :class:`AGEM`, :class:`SGEM` or a user-defined method.
    full_output : bool
        Return a :class:`Projection` with diagnostics instead of the update alone.
    precise : bool
        Compute float32 gradients in float64 and round once, in about twice the time. It helps where
        the old gradients are nearly dependent: see "How precise" in the README.

    Returns
    -------
    w : array (N,)
        A new array in the library, dtype and device of `g`; or a :class:`Projection`.

    Examples
    --------
    >>> import numpy as np
    >>> import gradproj as gp
    >>> g = np.asarray([1.0, 2.0, 1.0])
    >>> G = np.asarray([[-1.0, 1.0, 0.0], [-1.0, -1.0, 0.0]])
    >>> w = gp.project(g, G)
    >>> w, G @ w
    (array([0., 0., 1.]), array([0., 0.]))

    Several tasks without a distinguished new one: project their mean gradient, and no task's loss
    increases.

    >>> gp.project(G.mean(axis=0), G, gp.GEM())
    array([-1.,  0.,  0.])
    """
    _check_method(method)
    with computing(g):
        updates, solution = _project([enter({"g": g, "G": G})], [""], method, precise)
    if not full_output:
        update: SameArray = updates[0]
        return update
    return Projection(
        updates[0],
        solution.coefficients[0],
        int(solution.rank[0]),
        float(solution.multiplier[0]),
        bool(solution.corrected[0]),
        float(solution.scale[0]),
    )


@overload
def project_layers(
    g: Iterable[SameArray],
    G: Iterable[Array],
    method: Method = ...,
    *,
    full_output: Literal[False] = ...,
    precise: bool = ...,
) -> list[SameArray]: ...
@overload
def project_layers(
    g: Iterable[Array],
    G: Iterable[Array],
    method: Method = ...,
    *,
    full_output: Literal[True],
    precise: bool = ...,
) -> Projection: ...
@overload
def project_layers(
    g: Iterable[SameArray],
    G: Iterable[Array],
    method: Method = ...,
    *,
    full_output: bool,
    precise: bool = ...,
) -> list[SameArray] | Projection: ...
def project_layers(
    g: Iterable[SameArray],
    G: Iterable[Array],
    method: Method = Decomposed(),  # noqa: B008 (frozen)
    *,
    full_output: bool = False,
    precise: bool = False,
) -> list[SameArray] | Projection:
    r"""Solve the problem of :func:`project` for each layer on its own.

    .. math:: \min_{w^{(l)}} \tfrac12 \|w^{(l)} - g^{(l)}\|^2
       \quad \text{s.t. the constraints of the method on } G^{(l)}, \qquad l = 1, \dots, L

    Layers with large gradients then do not dominate the others. The layers may differ in size;
    their T-sized problems are solved as one batch.

    Parameters
    ----------
    g : iterable of arrays (N_l,)
        Gradient of the new task, layer by layer.
    G : iterable of arrays (T, N_l)
        Gradients of the old tasks, layer by layer; views of one large buffer are fine.
    method, full_output, precise
        As in :func:`project`.

    Returns
    -------
    w : list of arrays (N_l,)
        Or a :class:`Projection` whose diagnostics have a leading layer axis.

    Examples
    --------
    >>> import numpy as np
    >>> import gradproj as gp
    >>> g = [np.asarray([1.0, 0.0]), np.asarray([3.0])]
    >>> G = [np.asarray([[-1.0, 1.0]]), np.asarray([[2.0]])]
    >>> gp.project_layers(g, G)
    [array([0.5, 0.5]), array([3.])]
    """
    _check_method(method)
    g, G = list(g), list(G)
    with computing(g[0] if g else None):
        updates, solution = _project(*enter_layers(g, G), method=method, precise=precise)
    if not full_output:
        return updates
    return Projection(
        updates,
        solution.coefficients,
        solution.rank,
        solution.multiplier,
        solution.corrected,
        solution.scale,
    )


def _check_method(method: Method) -> None:
    if not isinstance(method, Method):
        raise TypeError(f"method is {method!r}: pass a method object, for example gp.GEM()")


def _project(
    layers: Sequence[Entered], labels: Sequence[str], method: Method, precise: bool
) -> tuple[list[Array], Solution]:
    """Project each layer; return the updates in the caller's form and the solution."""
    if not layers:
        return [], Solution(np.zeros((0, 0)))
    xp = layers[0].xp
    new, old = ([layer.arrays[k] for layer in layers] for k in (0, 1))
    T = old[0].shape[0]
    reduction = method.reduce(T) if T else None
    rows, (products, wide, unsafe) = _measured(xp, new, old, reduction, precise)
    factors = None
    if unsafe.any():
        factors = fitting_factors(xp, new, old, unsafe)
        if factors is not None:
            new, old = ([x * f for x, f in zip(each, factors, strict=True)] for each in (new, old))
            rows, (products, wide, _) = _measured(xp, new, old, reduction, precise)
        if reduction is not None and not products.finite.all():
            products = measure_entered(xp, new, old, wide).products  # to name the row
        check_finite(products, labels)
    solution = solve_checked(method if reduction is None else reduction.method, products)
    updates = [
        combined(xp, *each)
        for each in zip(
            new, rows, solution.coefficients, solution.scale.tolist(), wide, strict=True
        )
    ]
    if factors is not None:
        updates = [w / f for w, f in zip(updates, factors, strict=True)]
    largest = float(xp.finfo(new[0].dtype).max)
    if factors is not None or not _surely_fits(solution, products, largest):
        check_overflow(xp, updates)
    if reduction is not None:
        solution = reduction.expand(solution)
    return [layer.leave(w) for layer, w in zip(layers, updates, strict=True)], solution


def _surely_fits(solution: Solution, products: Products, largest: float) -> bool:
    """Whether the lengths alone show that no update overflows: |w| <= s ‖g‖ + Σ |cᵢ| ‖gᵢ‖."""
    bound = (np.abs(solution.coefficients) * products.lengths).sum(1)
    bound += np.abs(solution.scale) * np.sqrt(products.square)
    return bool(bound.max() < largest / 2)  # False for NaN


def _measured(
    xp: Any, new: list[Array], old: list[Array], reduction: Reduction | None, precise: bool
) -> tuple[list[Array], Measured]:
    """Measure each layer's old gradients, or the one combination that the method needs of them.

    Returns
    -------
    rows : list of arrays (T, N_l) or (1, N_l)
        What the coefficients will multiply. A combination is in float64 where float32 would lose
        digits to cancellation.
    measured : Measured
        With products that are zero where only rounding is left of a combination.
    """
    wide = wide_layers(xp, new, precise)
    if reduction is None:
        return old, measure_entered(xp, new, old, wide)
    weights, tasks = reduction.weights, reduction.tasks
    if len(weights) != old[0].shape[0]:
        raise ValueError(
            f"reduce({old[0].shape[0]}) returned {len(weights)} weights: return one per old task"
        )
    if len(tasks) == 1 and weights[tasks[0]] == 1:
        rows = [G_l[tasks[0] : tasks[0] + 1, :] for G_l in old]
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
        count = N // _STRIDE
        blocks = xp.reshape(G[:, : count * _STRIDE], (T, count, _STRIDE))[:, :, :_SAMPLE]
        rest = G[:, count * _STRIDE : min(count * _STRIDE + _SAMPLE, N)]
        squares = to_host(xp.vecdot(blocks, blocks)).sum(1) + to_host(xp.vecdot(rest, rest))
        seen = max(count * _SAMPLE + rest.shape[1], 1)
        row = from_host(weights, G) @ G
        return row[None, :], float(np.abs(weights) @ np.sqrt(squares * (N / seen)))
    squares, parts = np.zeros(T), []
    for cut in cuts(xp, T, N, WIDE_BLOCK):
        block = widened(xp, G[:, cut])
        here = np if isinstance(block, np.ndarray) else xp
        parts.append(from_host(weights, block) @ block)
        squares = squares + to_host(here.vecdot(block, block))
    row = parts[0] if len(parts) == 1 else here.concat(parts)
    return row[None, :], float(np.abs(weights) @ np.sqrt(squares))
