"""S-GEM: the constraint of one old task, drawn at random."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from gradproj._agem import AGEM
from gradproj._arrays import HostArray
from gradproj._method import Method, Solution, check_strength


@dataclass(frozen=True)
class SGEM(Method):
    r"""S-GEM: do not increase the loss of one old task, drawn anew at each call.

    .. math:: \min_w \tfrac12 \|w - g\|^2 \quad \text{s.t.} \quad g_k^\top w \ge 0,
       \qquad k \sim \mathrm{U}\{1, \dots, T\}

    with the closed form of :class:`AGEM` for the one gradient :math:`g_k`. All layers of a call get
    the same task.

    Parameters
    ----------
    strength : float
        The memory strength: the least value of the dual variable once the constraint is violated.
    seed : int
        Seeds the draws. Two objects with equal seeds draw the same tasks.

    Attributes
    ----------
    generator : numpy.random.Generator
        Where the draws come from; `generator.bit_generator.state` is what a checkpoint keeps.

    References
    ----------
    Chaudhry et al., Efficient lifelong learning with A-GEM, ICLR 2019 (appendix).

    Examples
    --------
    >>> import numpy as np
    >>> import gradproj as gp
    >>> g, G = np.asarray([1.0, 0.0]), np.asarray([[-1.0, 1.0], [-1.0, 1.0]])
    >>> gp.project(g, G, gp.SGEM(seed=7))
    array([0.5, 0.5])
    """

    strength: float = 0.0
    seed: int = 0
    generator: np.random.Generator = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_strength(self.strength)
        if not isinstance(self.seed, int | np.integer) or self.seed < 0:
            raise ValueError(f"seed={self.seed!r}: it should be an integer from 0 on")
        object.__setattr__(self, "generator", np.random.default_rng(self.seed))

    def solve_layers(self, C: HostArray, h: HostArray, tolerance: float) -> Solution:
        layers, T = h.shape
        if T == 0:
            return AGEM(self.strength).solve_layers(C, h, tolerance)
        k = int(self.generator.integers(T))
        one = AGEM(self.strength).solve_layers(C[:, k : k + 1, k : k + 1], h[:, k : k + 1], 0.0)
        coefficients = np.zeros((layers, T))
        coefficients[:, k] = one.coefficients[:, 0]
        return replace(one, coefficients=coefficients)

    def _reduce(self, T: int) -> tuple[HostArray, Method] | None:
        weights = np.zeros((1, T))
        weights[0, self.generator.integers(T)] = 1.0
        return weights, AGEM(self.strength)
