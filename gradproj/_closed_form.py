"""The paper's algorithm, second half: Eq. 11 as written, and the residuals of its optimality."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from gradproj._arrays import (
    Array,
    Entered,
    SameArray,
    computing,
    device,
    namespace,
    overflow,
)
from gradproj._basis import enter_finite, lengths


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
        Orthonormal basis of the task-specific gradients, one direction per row; r may be 0.

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
    with computing(g):
        given = _enter_with_basis({"g": g, "shared": shared, "B": B})
        xp, (new, mean, basis) = given.xp, given.arrays
        size = _largest(xp, new)
        Pg, Pmean, free = _project_both(xp, new / size, mean, basis)
        slope = float(xp.sum(Pmean * Pg)) if free else 0.0
        if slope < 0:
            Pg = Pg - slope / float(xp.sum(Pmean * Pmean)) * Pmean
        w = size * Pg
        if not bool(xp.all(xp.isfinite(w))):
            raise overflow(w.dtype)
        found: SameArray = given.leave(w)
        return found


@dataclass(frozen=True)
class KKTResiduals:
    """Residuals of the optimality conditions, relative; 0 where a condition holds.

    The scale s is the larger of ‖g‖ and ‖w‖.

    Attributes
    ----------
    stationarity : float
        Length of w − g without its part along the constraints' gradients, over s.
    equality : float
        ‖B w‖ over s.
    inequality : float
        How negative ⟨P ḡ, w⟩ / (‖P ḡ‖ s) is, where P ḡ is the part of ḡ that B leaves free.
    dual : float
        Length ‖μ P ḡ‖ by which a negative multiplier of the inequality moves the update, over s.
    slackness : float
        The same for a multiplier of either sign, times the distance of the constraint from binding.

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

    The multipliers are recovered from `w` by least squares, so that any update can be judged. The
    problem is convex: if all residuals are zero, `w` is the unique solution.

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
    with computing(w):
        given = _enter_with_basis({"w": w, "g": g, "shared": shared, "B": B})
        xp, (w, g, shared, B) = given.xp, given.arrays
        largest = _largest(xp, g, w)
        w, g = w / largest, g / largest
        size = max(_length(xp, g), _length(xp, w)) or 1.0
        w, g = w / size, g / size
        moved, Pshared, free = _project_both(xp, w - g, shared, B)
        pull = along = 0.0  # the length by which the multiplier moves the update; and P ḡ · w
        if free:
            Pshared = Pshared / _length(xp, Pshared)
            pull = float(xp.sum(moved * Pshared))
            moved = moved - pull * Pshared
            along = float(xp.sum(Pshared * w))
        return KKTResiduals(
            stationarity=_length(xp, moved),
            equality=_length(xp, B @ w),
            inequality=max(0.0, -along),
            dual=max(0.0, -pull),
            slackness=abs(pull * along),
        )


def _project_both(xp: Any, x: Array, shared: Array, B: Array) -> tuple[Array, Array, bool]:
    """Return P x, P ḡ in units of ‖ḡ‖, and whether the latter is more than rounding."""
    shared = shared / _largest(xp, shared)
    shared = shared / (_length(xp, shared) or 1.0)
    for _ in range(2):  # the second pass removes the rounding error of the first
        x = x - (B @ x) @ B
        shared = shared - (B @ shared) @ B
    return x, shared, _length(xp, shared) > 100 * float(xp.finfo(shared.dtype).eps)


def _largest(xp: Any, *vectors: Array) -> float:
    """Return a divisor that keeps lengths from overflowing: about the largest absolute value, or 1.

    It is a power of two, so that the division does not round.
    """
    largest = max((float(xp.max(xp.abs(x))) for x in vectors if x.shape[0]), default=0.0)
    return math.ldexp(1.0, math.frexp(largest)[1] - 1) if largest else 1.0


def _length(xp: Any, x: Array) -> float:
    return float(lengths(xp, x[None, :])[0])


def _enter_with_basis(arrays: Mapping[str, Array]) -> Entered:
    """Enter finite vectors and an orthonormal basis B, which comes last."""
    given = enter_finite(arrays)
    xp, B = given.xp, given.arrays[-1]
    off = xp.abs(B @ B.T - xp.eye(B.shape[0], dtype=B.dtype, device=device(B)))
    worst = float(xp.max(off)) if B.shape[0] else 0.0
    # A basis of 16 bits has been rounded to them.
    epsilon = float(namespace(arrays["B"]).finfo(arrays["B"].dtype).eps)
    if worst > epsilon**0.5:
        raise ValueError(
            f"B has rows that are not orthonormal (B Bᵀ differs from the identity by {worst:.1g}): "
            "pass gp.gram_schmidt(B) or gp.principal_components(B)"
        )
    return given
