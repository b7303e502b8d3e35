"""Methods that look at one old task a step, such as S-GEM: which one, told before any backward."""

from __future__ import annotations

from collections.abc import Sized
from dataclasses import dataclass, replace

import numpy as np

import gradproj as gp
from gradproj.adapters.torch.gradients import Floats


@dataclass(frozen=True)
class Drawn:
    """The old task whose gradient alone a step needs.

    Attributes
    ----------
    task : int
    method : gradproj.Method
        What is solved with that one gradient.
    weights : numpy.ndarray (1, T)
        1 for the task, 0 for all others.
    """

    task: int
    method: gp.Method
    weights: Floats

    def among_all(self, solution: gp.Solution) -> gp.Solution:
        """Give every old task its coefficient: none but the drawn one has any."""
        return replace(solution, coefficients=solution.coefficients @ self.weights)


def draw(method: gp.Method, old: object) -> Drawn | None:
    """Draw the task, if the method wants one and `old` can tell how many there are."""
    tasks = len(old) if isinstance(old, Sized) else 0
    reduced = method._reduce(tasks) if tasks > 1 else None
    if reduced is None:
        return None
    weights, inner = reduced
    chosen = np.flatnonzero(weights)
    return Drawn(int(chosen[0]), inner, weights) if len(chosen) == 1 else None
