"""S-GEM: the constraint of one old task, drawn at random."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gradproj._method import Method, Solution, check_strength
from gradproj._methods.agem import AGEM
from gradproj._products import Products
from gradproj._reduction import Reduction


@dataclass(frozen=True)
class SGEM(Method):
    r"""S-GEM: do not increase the loss of one old task, drawn at random for each step.

    .. math:: \min_w \tfrac12 \|w - g\|^2 \quad \text{s.t.} \quad g_k^\top w \ge 0,
       \qquad k \sim \mathrm{U}\{1, \dots, T\}

    The closed form is that of :class:`AGEM` for the one gradient :math:`g_k`. All layers of a step
    use the same task.

    Parameters
    ----------
    strength : float
        The memory strength: the least value of the dual variable once the constraint is violated.
    seed : int
        Seed of the draws. Two objects with equal seeds draw the same tasks.
    ridge : float
        As for :class:`AGEM`.

    Attributes
    ----------
    generator : numpy.random.Generator
        The source of the draws. :meth:`state_dict` saves its state.

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
    ridge: float = 0.0
    generator: np.random.Generator = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_strength(self.strength)
        check_strength(self.ridge, "ridge")
        if not isinstance(self.seed, int | np.integer) or self.seed < 0:
            raise ValueError(f"seed={self.seed!r} is invalid: expected an integer >= 0")
        object.__setattr__(self, "generator", np.random.default_rng(self.seed))

    def solve_layers(self, products: Products) -> Solution:
        T = products.h.shape[1]
        if T == 0:
            return Solution(products.h)
        drawn = self.reduce(T)
        k = drawn.tasks
        one = Products(
            products.C[:, k][:, :, k], products.h[:, k], products.square, products.tolerance
        )
        return drawn.expand(drawn.method.solve_layers(one))

    def reduce(self, T: int) -> Reduction:
        weights = np.zeros(T)
        weights[self.generator.integers(T)] = 1.0
        return Reduction(weights, AGEM(self.strength, ridge=self.ridge))

    def state_dict(self) -> dict[str, Any]:
        return {"generator": self.generator.bit_generator.state}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if set(state) != {"generator"}:
            raise ValueError(
                f"state has {sorted(state)}: expected the state_dict() of an SGEM, with 'generator'"
            )
        self.generator.bit_generator.state = state["generator"]
