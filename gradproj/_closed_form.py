"""The explicit road, second half: Eq. 11 as it is written, and the test of its optimality."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from gradproj._arrays import (
    Array,
    SameArray,
    check_array,
    common_namespace,
    device,
    full_precision,
    narrowed,
)
from gradproj._basis import _enter, lengths


def solve(g: SameArray, shared: Array, B: Array) -> SameArray:
    r"""Solve the paper's problem for a given shared gradient and basis: Eq. 11.

    .. math:: \min_w \tfrac12 \|w - g\|^2 \quad \text{s.t.} \quad \bar g^\top w \ge 0
       \quad \text{and} \quad B w = 0

    With :math:`P = I - B^\top B` (applied, never formed):

    .. math:: w = \begin{cases} P g & \bar g^\top P g \ge 0 \\
       P g - \dfrac{\bar g^\top P g}{\bar g^\top P \bar g} P \bar g & \bar g^\top P g < 0
       \end{cases}

    Where :math:`P \bar g` is zero up to rounding, nothing is corrected.

    Parameters
    ----------
    g : array (N,)
        Gradient of the new task.
    shared : array (N,)
        The shared gradient :math:`\bar g`.
    B : array (r, N)
        Orthonormal basis of the task-specific gradients, one direction a row; r may be 0.

    Returns
    -------
    w : array (N,)
        In the library, dtype and device of `g`.

    Examples
    --------
    >>> import numpy as np
    >>> import gradproj as gp
    >>> shared, specific = gp.decompose(np.asarray([[-1.0, 1.0, 0.0], [-1.0, -1.0, 0.0]]))
    >>> gp.solve(np.asarray([1.0, 2.0, 1.0]), shared, gp.gram_schmidt(specific))
    array([0., 0., 1.])
    """
    xp, (new, shared, B), dtype = _enter_all(g=g, shared=shared, B=B)
    size = _largest(xp, new)
    Pg, Pshared, free = _project_both(xp, new / size, shared, B)
    slope = float(xp.sum(Pshared * Pg)) if free else 0.0
    if slope < 0:
        Pg = Pg - slope / float(xp.sum(Pshared * Pshared)) * Pshared
    with np.errstate(over="ignore"):
        w: SameArray = narrowed(xp, size * Pg, dtype)
    return w


@dataclass(frozen=True)
class KKTResiduals:
    """How far an update is from optimal: each condition's residual, relative, 0 if it holds.

    The scale s is the larger of ‖g‖ and ‖w‖.

    Attributes
    ----------
    stationarity : float
        What is left of w − g after the best multipliers of the constraints, over s.
    equality : float
        ‖B w‖ over s.
    inequality : float
        How negative the cosine-like ⟨P ḡ, w⟩ / (‖P ḡ‖ s) is: of ḡ what B leaves free.
    dual : float
        How far a negative multiplier of the inequality moves the update: ‖μ P ḡ‖ over s.
    slackness : float
        The same for a multiplier of either sign, times how far the constraint is from binding.

    Examples
    --------
    >>> import gradproj as gp
    >>> gp.KKTResiduals(0.0, 1e-12, 0.0, 0.0, 3e-10).worst
    3e-10
    """

    stationarity: float
    equality: float
    inequality: float
    dual: float
    slackness: float

    @property
    def worst(self) -> float:
        """The largest of the residuals."""
        return max(float(getattr(self, field.name)) for field in fields(self))


def kkt_residuals(w: Array, g: Array, shared: Array, B: Array) -> KKTResiduals:
    r"""Measure how well an update satisfies the optimality conditions of :func:`solve`'s problem.

    .. math:: w - g - \mu \bar g + B^\top \nu = 0, \quad B w = 0, \quad \bar g^\top w \ge 0,
       \quad \mu \ge 0, \quad \mu\, \bar g^\top w = 0

    The multipliers are recovered from `w` by least squares, so any `w` can be judged, wherever it
    came from. The problem is convex: all residuals zero means that `w` is the one solution.

    Parameters
    ----------
    w : array (N,)
        The update to judge.
    g, shared, B : arrays
        As in :func:`solve`.

    Returns
    -------
    KKTResiduals
        Relative residuals, as Python floats.

    Examples
    --------
    >>> import numpy as np
    >>> import gradproj as gp
    >>> g, shared, B = np.asarray([1.0, 2.0]), np.asarray([-1.0, 0.0]), np.zeros((0, 2))
    >>> gp.kkt_residuals(gp.solve(g, shared, B), g, shared, B).worst
    0.0
    >>> gp.kkt_residuals(g, g, shared, B).inequality > 0.4
    True
    """
    xp, (w, g, shared, B), _ = _enter_all(w=w, g=g, shared=shared, B=B)
    largest = _largest(xp, g, w)
    w, g = w / largest, g / largest
    size = max(_length(xp, g), _length(xp, w)) or 1.0
    w, g = w / size, g / size
    moved, Pshared, free = _project_both(xp, w - g, shared, B)
    pull = along = 0.0  # the multiplier, as the length that it moves the update by; and P ḡ · w
    if free:
        Pshared = Pshared / _length(xp, Pshared)
        pull = float(xp.sum(moved * Pshared))
        moved = moved - pull * Pshared
        along = float(xp.sum(Pshared * w))
    with full_precision(B):
        along_basis = B @ w
    return KKTResiduals(
        stationarity=_length(xp, moved),
        equality=_length(xp, along_basis),
        inequality=max(0.0, -along),
        dual=max(0.0, -pull),
        slackness=abs(pull * along),
    )


def _project_both(xp: Any, x: Array, shared: Array, B: Array) -> tuple[Array, Array, bool]:
    """Return P x, P ḡ in units of ‖ḡ‖, and whether that is more than zero up to rounding."""
    shared = shared / _largest(xp, shared)
    shared = shared / (_length(xp, shared) or 1.0)
    # Twice: what rounding leaves of B after the first time, the second takes away.
    with full_precision(B):
        for _ in range(2):
            x = x - (B @ x) @ B
            shared = shared - (B @ shared) @ B
    return x, shared, _length(xp, shared) > 100 * float(xp.finfo(shared.dtype).eps)


def _largest(xp: Any, *vectors: Array) -> float:
    """Return about the largest size of their numbers, or 1: to divide by before lengths overflow.

    A power of two, by which nothing is rounded.
    """
    largest = max((float(xp.max(xp.abs(x))) for x in vectors if x.shape[0]), default=0.0)
    return math.ldexp(1.0, math.frexp(largest)[1] - 1) if largest else 1.0


def _length(xp: Any, x: Array) -> float:
    return float(lengths(xp, x[None, :])[0])


def _enter_all(**arrays: Array) -> tuple[Any, list[Array], Any]:
    """Check vectors and a basis B that belong together; at least float32 from here on."""
    for name, x in arrays.items():
        check_array(name, x, 2 if name == "B" else 1)
    names, values = tuple(arrays), tuple(arrays.values())
    xp = common_namespace(names, values)
    for name, x in arrays.items():
        if x.shape[-1] != values[0].shape[0]:
            raise ValueError(
                f"{name} is {x.shape[-1]} long and {names[0]} {values[0].shape[0]}: "
                "all of them belong to the same N parameters"
            )
    wide = [_enter(name, x, x.ndim)[1] for name, x in arrays.items()]
    _check_orthonormal(xp, wide[names.index("B")], values[0].dtype)
    return xp, wide, values[0].dtype


def _check_orthonormal(xp: Any, B: Array, dtype: Any) -> None:
    """Raise for rows that were not made orthonormal, whatever rounding has done to them since."""
    with full_precision(B):
        products = B @ B.T
    off = xp.abs(products - xp.eye(B.shape[0], dtype=B.dtype, device=device(B)))
    worst = float(xp.max(off)) if B.shape[0] else 0.0
    if worst > float(xp.finfo(dtype).eps) ** 0.5:
        raise ValueError(
            f"B has rows that are not orthonormal (B Bᵀ is {worst:.1g} off the identity): pass "
            "gp.gram_schmidt(B) or gp.principal_components(B)"
        )
