"""Methods that look at the mean of the old gradients, or at one: a single row will do for them."""

from __future__ import annotations

from collections.abc import Sized
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

import gradproj as gp
from gradproj.adapters.torch.gradients import Floats, Gradients


@dataclass
class Reduction:
    """The sum of some old gradients, which is all that a step needs of them.

    A-GEM and the shared constraint alone want the mean of all, S-GEM one that it draws.

    Attributes
    ----------
    method : gradproj.Method
        What is solved with the one gradient `weights @ G`.
    weights : numpy.ndarray (1, T)
        One number for the tasks in the sum, 0 for all others.
    tasks : list of int
        The old tasks in the sum.
    longest : list of tensors
        Greatest length that the sum has had, in each segment of each block of the buffer.
    """

    method: gp.Method
    weights: Floats
    tasks: list[int]
    longest: list[Tensor] = field(default_factory=list)

    def look_at(self, gradients: Gradients) -> None:
        """Note how long the sum is by now."""
        if len(self.tasks) > 1:
            now = gradients.lengths()
            known = self.longest or now
            self.longest = [torch.maximum(*pair) for pair in zip(known, now, strict=True)]
            self.gradients = gradients

    def solve(self, C: Floats, h: Floats, *, tolerance: float) -> gp.Solution:
        """Solve for the coefficient of the sum, from the sum's C (L, 1, 1) and h (L, 1).

        Where the sum is nothing but rounding beside what it has been, the gradients have cancelled:
        there is no direction to go by, and it counts as zero.
        """
        weight = float(self.weights.max())
        if self.longest:
            scale = self.gradients.squares(self.longest)
            # Squares beyond float32 tell nothing.
            nothing = np.isfinite(scale) & (C[:, 0, 0] <= tolerance * scale)
            C, h = np.where(nothing[:, None, None], 0.0, C), np.where(nothing[:, None], 0.0, h)
        C, h = C * weight**2, h * weight
        solution = self.method.solve(C, h, tolerance=tolerance)
        return replace(solution, coefficients=solution.coefficients * weight)

    def among_all(self, solution: gp.Solution) -> gp.Solution:
        """Give every old task in the sum the sum's coefficient, and the others none."""
        return replace(solution, coefficients=solution.coefficients * (self.weights > 0))


def find(method: gp.Method, old: object) -> Reduction | None:
    """Ask the method, if `old` can tell how many tasks there are; S-GEM draws one then."""
    tasks = len(old) if isinstance(old, Sized) else 0
    reduced = method._reduce(tasks) if tasks > 1 else None
    if reduced is None:
        return None
    weights, inner = reduced
    return Reduction(inner, weights, np.flatnonzero(weights).tolist())
