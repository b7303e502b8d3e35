"""A-GEM: one constraint on the mean of the old gradients."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gradproj._arrays import HostArray
from gradproj._method import Method, Solution, check_strength


@dataclass(frozen=True)
class AGEM(Method):
    r"""A-GEM: do not increase the mean loss of the old tasks.

    .. math:: \min_w \tfrac12 \|w - g\|^2 \quad \text{s.t.} \quad \bar g^\top w \ge 0,
       \qquad \bar g = \tfrac1T \sum_i g_i

    with the closed form :math:`w = g + v \bar g`, where :math:`v = 0` if
    :math:`\bar g^\top g \ge 0` and :math:`v = \max(\gamma, -\bar g^\top g / \|\bar g\|^2)` if not.
    Where the old gradients cancel, :math:`\bar g` zero up to rounding, nothing is corrected.

    Parameters
    ----------
    strength : float
        The memory strength :math:`\gamma`: the least value of :math:`v` once the constraint is
        violated. 0 is the problem as written; more also moves towards the old tasks. The update
        then jumps where :math:`\bar g^\top g` changes its sign, and where that is zero up to
        rounding, rounding decides.

    References
    ----------
    Chaudhry et al., Efficient lifelong learning with A-GEM, ICLR 2019.

    Examples
    --------
    >>> import numpy as np
    >>> import gradproj as gp
    >>> g, G = np.asarray([1.0, 0.0]), np.asarray([[-1.0, 1.0], [-1.0, -1.0]])
    >>> gp.project(g, G, gp.AGEM())
    array([0., 0.])
    """

    strength: float = 0.0

    def __post_init__(self) -> None:
        check_strength(self.strength)

    def solve_layers(self, C: HostArray, h: HostArray, tolerance: float) -> Solution:
        layers, T = h.shape
        slope = h.sum(1) / max(T, 1)
        square = C.sum((1, 2)) / max(T, 1) ** 2
        longest = np.diagonal(C, axis1=1, axis2=2).max(1, initial=0.0)
        corrected = (slope < 0) & (square > tolerance * longest)
        step = np.divide(-slope, square, out=np.zeros(layers), where=corrected)
        multiplier = np.where(corrected, np.maximum(step, self.strength), 0.0)
        coefficients = np.repeat(multiplier[:, None] / max(T, 1), T, axis=1)
        return Solution(coefficients, np.zeros(layers, np.int64), multiplier, corrected)

    def _reduce(self, T: int) -> tuple[HostArray, Method] | None:
        return np.full((1, T), 1 / T), self
