"""A-GEM: one constraint on the mean of the old gradients."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from gradproj._method import Method, Replay, Solution, check_replay, check_strength
from gradproj._products import Products
from gradproj._reduction import Reduction


@dataclass(frozen=True)
class AGEM(Method):
    r"""A-GEM: do not increase the mean loss of the old tasks.

    .. math:: \min_w \tfrac12 \|w - g\|^2 \quad \text{s.t.} \quad \bar g^\top w \ge 0,
       \qquad \bar g = \tfrac1T \sum_i g_i

    The closed form is :math:`w = g + v \bar g`, where :math:`v = 0` if
    :math:`\bar g^\top g \ge 0`, and :math:`v = \max(\gamma, -\bar g^\top g / \|\bar g\|^2)`
    otherwise. Where the old gradients cancel, so that :math:`\bar g` is zero up to rounding,
    nothing is corrected.

    Parameters
    ----------
    strength : float
        The memory strength :math:`\gamma`: the least value of :math:`v` once the constraint is
        violated. 0 is the problem as written. A larger value also descends on the old tasks. The
        update is then discontinuous where :math:`\bar g^\top g` changes its sign.
    replay : {"mean", "sum"}
        Whether :math:`v` multiplies the mean of the old gradients, as written above, or their sum.
        Without a strength the update is the same. With one, the sum makes it T times as strong.
    ridge : float
        Added to the squared length in the denominator of :math:`v`. The code behind the paper's
        numbers has 0.001, which matters for gradients shorter than 0.1.

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
    replay: Replay = "mean"
    ridge: float = 0.0

    def __post_init__(self) -> None:
        check_strength(self.strength)
        check_replay(self.replay)
        check_strength(self.ridge, "ridge")

    def solve_layers(self, products: Products) -> Solution:
        layers, tasks = products.h.shape
        T = max(tasks, 1)
        slope, square = products.h.sum(1) / T, products.C.sum((1, 2)) / T**2
        # Where the old gradients cancel, only the rounding of the products is left.
        rounding = products.tolerance * products.C.trace(axis1=1, axis2=2) / T**2
        corrected = (slope < 0) & (square > rounding)
        of_mean = self._of_mean(T)
        step = np.divide(-slope, square + of_mean.ridge, out=np.zeros(layers), where=corrected)
        multiplier = corrected * np.maximum(step, of_mean.strength)
        coefficients = (multiplier[:, None] / T).repeat(tasks, axis=1)
        return Solution(coefficients, 0, multiplier, corrected)  # type: ignore[arg-type]

    def reduce(self, T: int) -> Reduction:
        return Reduction(np.full(T, 1 / T), self._of_mean(T))

    def _of_mean(self, T: int) -> AGEM:
        """Return this method in terms of the mean of T old gradients."""
        if self.replay == "mean":
            return self
        return replace(
            self, strength=float(self.strength) * T, replay="mean", ridge=self.ridge / T**2
        )
