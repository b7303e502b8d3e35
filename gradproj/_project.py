"""The fast road: measure the inner products, solve T-sized problems, combine."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, overload

import numpy as np

from gradproj._arrays import (
    Array,
    HostArray,
    SameArray,
    common_namespace,
    device,
    enter,
    from_host,
    full_precision,
)
from gradproj._decomposed import Decomposed
from gradproj._errors import NotFiniteError
from gradproj._measure import SAFE_SQUARE, combine_layer, cuts, measure_layers, stack_on_host
from gradproj._method import TOLERANCE_32, TOLERANCE_64, Method, Solution, solve_checked


@dataclass(frozen=True, eq=False)  # arrays have no one answer to ==
class Projection:
    r"""The update with what led to it: what ``full_output=True`` returns.

    Attributes
    ----------
    update : array (N,), or list of arrays
        The solution :math:`w = g + G^\top c`.
    coefficients, rank, multiplier, corrected
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

    The solution is :math:`w = g + G^\top c`. The gradients are read through
    :math:`C = G G^\top` and :math:`h = G g` alone; c comes from a T-sized problem on the host.

    Parameters
    ----------
    g : array (N,)
        Gradient of the new task.
    G : array (T, N)
        Gradients of the old tasks, one a row. Not changed, and not copied unless they have 16 bits.
    method : Method
        :class:`Decomposed`, :class:`GEM`, :class:`AGEM`, :class:`SGEM` or one of your own.
    full_output : bool
        Return a :class:`Projection` with the diagnostics instead of the update alone.
    precise : bool
        Compute float32 gradients in float64 and round once, at about twice the time. It pays where
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
    """
    updates, solution = _project([g], [G], method, precise, [""])
    if not full_output:
        update: SameArray = updates[0]
        return update
    one = solution[0]
    return Projection(
        updates[0], one.coefficients, int(one.rank), float(one.multiplier), bool(one.corrected)
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

    Each layer takes its own decision, so layers with large gradients do not decide for the rest.
    The layers may differ in size; their T-sized problems are solved as one batch.

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
    g, G = list(g), list(G)
    if len(g) != len(G):
        raise ValueError(f"g has {len(g)} layers and G has {len(G)}: they go in pairs")
    labels = [f"[{layer}]" for layer in range(len(g))]
    updates, solution = _project(g, G, method, precise, labels)
    if not full_output:
        return updates
    return Projection(
        updates, solution.coefficients, solution.rank, solution.multiplier, solution.corrected
    )


def _project(
    g: Sequence[Array], G: Sequence[Array], method: Method, precise: bool, labels: list[str]
) -> tuple[list[Array], Solution]:
    """Project each layer; the updates in the caller's form, and the solution of the batch."""
    if not isinstance(method, Method):
        raise TypeError(f"method is {method!r}: pass a method, for example gp.GEM()")
    layers = [enter(g_l, G_l, label) for g_l, G_l, label in zip(g, G, labels, strict=True)]
    _check_alike(g, G, labels)
    T = layers[0].G.shape[0] if layers else 0
    if T == 0:
        for layer, label in zip(layers, labels, strict=True):
            if not bool(layer.xp.all(layer.xp.isfinite(layer.g))):
                raise NotFiniteError(f"g{label} holds NaN or infinity: skip this step")
        copies = [layer.leave(layer.xp.asarray(layer.g, copy=True)) for layer in layers]
        return copies, method.solve_layers(np.zeros((len(g), 0, 0)), np.zeros((len(g), 0)), 0.0)

    xp = layers[0].xp
    new, old = [layer.g for layer in layers], [layer.G for layer in layers]
    # A sum of float32 gradients is rounded before it is measured, against what `precise` promises.
    summed = T > 1 and not (precise and new[0].dtype != xp.float64)
    reduced = method._reduce(T) if summed else None
    weights, inner = reduced or (None, method)
    weighed = None if weights is None else [_weigh(xp, G_l, weights) for G_l in old]
    rows = old if weighed is None else [row for row, _ in weighed]
    try:
        C, h, widened = measure_layers(xp, new, rows, precise, labels)
    except NotFiniteError:
        if weighed is not None:
            measure_layers(xp, new, old, precise, labels)  # names the old task that it comes from
        raise
    if weighed is not None and _cancels(xp, [longest for _, longest in weighed], C):
        # In float64: what is left of sums that nearly cancel is what float32 products would lose.
        weights, inner, rows = None, method, old
        C, h, widened = measure_layers(xp, new, rows, True, labels)
    solution = _solve(inner, C, h, [wide or new[0].dtype == xp.float64 for wide in widened])
    updates = [
        layer.leave(combine_layer(xp, layer.g, G_l, c, wide))
        for layer, G_l, c, wide in zip(layers, rows, solution.coefficients, widened, strict=True)
    ]
    if weights is None:
        return updates, solution
    return updates, replace(solution, coefficients=solution.coefficients @ weights)


def _check_alike(g: Sequence[Array], G: Sequence[Array], labels: list[str]) -> None:
    """Raise unless all layers agree in library, dtype, device and number of old tasks."""
    for g_l, G_l, label in zip(g[1:], G[1:], labels[1:], strict=True):
        common_namespace((f"g{labels[0]}", f"g{label}"), (g[0], g_l))
        if G_l.shape[0] != G[0].shape[0]:
            raise ValueError(
                f"G{label} has {G_l.shape[0]} rows and G{labels[0]} has {G[0].shape[0]}: "
                "every layer has one row an old task"
            )


def _solve(method: Method, C: HostArray, h: HostArray, exact: Sequence[bool]) -> Solution:
    """Solve all layers, each with the tolerance of its inner products: two batches at most."""
    if all(exact) or not any(exact):
        return solve_checked(method, C, h, TOLERANCE_64 if all(exact) else TOLERANCE_32)
    fine = np.asarray(exact)
    parts = (
        solve_checked(method, C[fine], h[fine], TOLERANCE_64),
        solve_checked(method, C[~fine], h[~fine], TOLERANCE_32),
    )
    back = np.argsort(np.argsort(~fine, kind="stable"))
    joined = (
        np.concatenate([getattr(part, field.name) for part in parts])[back]
        for field in fields(Solution)
    )
    return Solution(*joined)


def _weigh(xp: Any, rows: Array, weights: HostArray) -> tuple[Array, Array | None]:
    """Return weights @ rows and the longest row's square; a view and None if they pick one."""
    picked = [int(row) for row in np.flatnonzero(weights)]
    if len(picked) == 1:
        return rows[picked[0] : picked[0] + 1, :], None
    w = from_host(weights, rows)
    sums, squares = [], xp.zeros(rows.shape[0], dtype=rows.dtype, device=device(rows))
    with np.errstate(over="ignore", invalid="ignore"), full_precision(rows):
        for cut in cuts(xp, *rows.shape):
            block = rows[:, cut]  # read once from memory, then twice from the cache
            sums.append(w @ block)
            squares += xp.vecdot(block, block)
    return sums[0] if len(sums) == 1 else xp.concat(sums, axis=1), xp.max(squares)


def _cancels(xp: Any, longest: list[Array | None], C: HostArray) -> bool:
    """Whether, in some layer, the old gradients may cancel down to rounding when they are added.

    Their sum is then no direction to go by, and only the T×T products can tell.
    """
    if any(square is None for square in longest):
        return False
    total, scale = C[:, 0, 0], stack_on_host(xp, longest)
    clear = (total > 10 * TOLERANCE_32 * scale) & (scale > SAFE_SQUARE[0])
    return not bool((clear | (total == 0)).all())
