"""Support for methods that need only one combination of the old gradients, kept in one row."""

from __future__ import annotations

from collections.abc import Sized
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

import gradproj as gp
from gradproj.adapters.torch.gradients import Gradients


@dataclass
class SumRow:
    """The sum of some old gradients, which is all that a step needs of them.

    Attributes
    ----------
    reduction : gradproj.Reduction
        From the method: the weights, and the problem with a single old gradient.
    weight : float
        The weight of each task in the sum.
    longest : list of tensors
        Greatest length that the sum has had, in each segment of each block of the buffer.
    """

    reduction: gp.Reduction
    weight: float
    longest: list[Tensor] = field(default_factory=list)

    @property
    def tasks(self) -> list[int]:
        """The old tasks in the sum."""
        return self.reduction.tasks

    def look_at(self, gradients: Gradients) -> None:
        """Record how long the sum is after one more task."""
        if len(self.tasks) > 1:
            now = gradients.lengths()
            known = self.longest or now
            self.longest = [torch.maximum(*pair) for pair in zip(known, now, strict=True)]
            self.gradients = gradients

    def solve(self, products: gp.Products) -> gp.Solution:
        """Solve for the coefficient of the sum, from the sum's C (L, 1, 1) and h (L, 1).

        Where only rounding is left of the sum, there is no direction: it counts as zero.
        """
        C, h = products.C * self.weight**2, products.h * self.weight
        if self.longest:
            squares = self.gradients.squares(self.longest)
            gone = self.reduction.cancels(products.C[:, 0, 0], squares**0.5, self.gradients.epsilon)
            C[gone], h[gone] = 0.0, 0.0
        solution = self.reduction.method.solve(
            gp.Products(C, h, products.square, products.tolerance)
        )
        return replace(solution, coefficients=solution.coefficients * self.weight)

    def among_all(self, solution: gp.Solution) -> gp.Solution:
        """Give every old task in the sum the sum's coefficient, and the others none."""
        chosen = self.reduction.weights != 0
        return replace(solution, coefficients=solution.coefficients * chosen)


def find(method: gp.Method, old: object) -> SumRow | None:
    """Ask the method, if `old` has a known number of tasks. S-GEM draws its task then."""
    tasks = len(old) if isinstance(old, Sized) else 0
    reduction = method.reduce(tasks) if tasks > 1 else None
    if reduction is None:
        return None
    weights = set(reduction.weights[reduction.tasks].tolist())
    if len(weights) > 1:
        raise ValueError(
            f"{type(method).__name__}.reduce returned unequal weights {sorted(weights)}: the "
            "adapter adds gradients up; return equal weights, or 0"
        )
    return SumRow(reduction, weights.pop())
