"""The fast path: measure the inner products, solve T-sized problems, combine."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, overload

import numpy as np

from gradproj._arrays import Array, Entered, HostArray, SameArray, computing, enter
from gradproj._combine import check_overflow, combined
from gradproj._measure import enter_layers, measure_entered
from gradproj._method import Method, Solution, solve_checked
from gradproj._methods.decomposed import Decomposed
from gradproj._products import Products, check_finite
from gradproj._ranges import fitting_factors
from gradproj._reduction import Reduction
from gradproj._sums import measure_old


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
        the old gradients are nearly dependent: see docs/precision-and-speed.md.

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
        updates, solution, reduction = _project([enter({"g": g, "G": G})], [""], method, precise)
    if not full_output:
        update: SameArray = updates[0]
        return update
    solution = _of_all_tasks(solution, reduction)
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
        updates, solution, reduction = _project(*enter_layers(g, G), method, precise)
    if not full_output:
        return updates
    solution = _of_all_tasks(solution, reduction)
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
) -> tuple[list[Array], Solution, Reduction | None]:
    """Project each layer; return the updates in the caller's form and the solution.

    With a reduction, the solution is in terms of its one combination of the old gradients.
    """
    if not layers:
        return [], Solution(np.zeros((0, 0))), None
    xp = layers[0].xp
    new, old = ([layer.arrays[k] for layer in layers] for k in (0, 1))
    T = old[0].shape[0]
    reduction = method.reduce(T) if T else None
    rows, (products, wide, unsafe) = measure_old(xp, new, old, reduction, precise)
    factors = None
    if unsafe.any():
        factors = fitting_factors(xp, new, old, unsafe)
        if factors is not None:
            new, old = ([x * f for x, f in zip(each, factors, strict=True)] for each in (new, old))
            rows, (products, wide, _) = measure_old(xp, new, old, reduction, precise)
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
    left = [layer.leave(w) for layer, w in zip(layers, updates, strict=True)]
    return left, solution, reduction


def _of_all_tasks(solution: Solution, reduction: Reduction | None) -> Solution:
    """Return the solution with one coefficient per old task."""
    return solution if reduction is None else reduction.expand(solution)


def _surely_fits(solution: Solution, products: Products, largest: float) -> bool:
    """Whether the lengths alone show that no update overflows: |w| <= s ‖g‖ + Σ |cᵢ| ‖gᵢ‖."""
    bound = (np.abs(solution.coefficients) * products.lengths).sum(1)
    bound += np.abs(solution.scale) * np.sqrt(products.square)
    return bool(bound.max() < largest / 2)  # False for NaN
