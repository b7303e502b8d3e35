"""GEM: one constraint per old task."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gradproj._method import Method, Replay, Solution, check_replay, check_strength
from gradproj._methods.nonnegative import nonnegative_quadratic
from gradproj._products import Products


@dataclass(frozen=True)
class GEM(Method):
    r"""GEM: do not increase the loss of any old task.

    .. math:: \min_w \tfrac12 \|w - g\|^2 \quad \text{s.t.} \quad g_i^\top w \ge 0
       \quad \text{for every old task } i

    It is solved through its dual, which has T unknowns:

    .. math:: \min_v \tfrac12 v^\top G G^\top v + (G g)^\top v \quad \text{s.t.} \quad v \ge \gamma,
       \qquad w = g + G^\top v

    If :math:`g` violates no constraint, then :math:`w = g`.

    Parameters
    ----------
    strength : float
        The memory strength :math:`\gamma`. 0 is the problem as written. GEM's published runs use
        0.5: once a constraint is violated, at least half of every old task's gradient is added.
        The update is then discontinuous where a constraint begins to be violated.
    replay : {"mean", "sum"}
        What is added at least once a constraint is violated: :math:`\gamma` times the mean of
        the old gradients, or :math:`\gamma` times their sum. In the problem as written above it
        is the sum; for the mean, the bound is :math:`\gamma / T`.
    ridge : float
        Added to the diagonal of :math:`G G^\top`. GEM's published code has 0.001, which matters
        for gradients shorter than 0.1: it then corrects less than the constraints ask for.

    References
    ----------
    Lopez-Paz and Ranzato, Gradient episodic memory for continual learning, NeurIPS 2017.

    Examples
    --------
    >>> import numpy as np
    >>> import gradproj as gp
    >>> g, G = np.asarray([1.0, 1.0]), np.asarray([[-1.0, 0.0], [0.0, 1.0]])
    >>> gp.project(g, G, gp.GEM())
    array([0., 1.])
    """

    strength: float = 0.0
    replay: Replay = "sum"
    ridge: float = 0.0

    def __post_init__(self) -> None:
        check_strength(self.strength)
        check_replay(self.replay)
        check_strength(self.ridge, "ridge")

    def solve_layers(self, products: Products) -> Solution:
        C, h, length = products.C, products.h, products.lengths
        T = h.shape[1]
        if self.ridge:
            C, length = C + self.ridge * np.eye(T), np.sqrt(length**2 + self.ridge)
        strength = float(self.strength) / (max(T, 1) if self.replay == "mean" else 1)
        corrected = np.asarray((h < 0).any(1))
        v = np.zeros(h.shape)
        for layer in np.flatnonzero(corrected):
            # Unit rows make the problem independent of the tasks' scales. A task whose gradient is
            # zero constrains nothing.
            some = length[layer] > 0
            unit = length[layer, some]
            A = C[layer][some][:, some] / unit / unit[:, None]
            q = h[layer, some] / unit + strength * (A @ unit)
            v[layer, some] = nonnegative_quadratic(A, q, products.tolerance[layer]) / unit
        active = (v > 0).sum(1)
        v[corrected] += strength
        return Solution(v, active, v.max(1, initial=0.0), corrected)
