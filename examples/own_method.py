"""A method of your own, beside those that are there: gradient surgery (PCGrad, Yu et al., 2020).

In this folder:

    gradproj run --benchmark permuted-digits --method own_method:PCGrad --seeds 0 1 2

`Surgery` alone is what `gp.project` and the torch adapter's `Projector` take.
"""

import numpy as np

import gradproj as gp
from gradproj.experiments.projection import ProjectionLearner


class Surgery(gp.Method):
    """Take from the new gradient, task after task, what points against the old task's."""

    def solve_layers(self, products):
        """Find c of w = g + cᵀG, for all layers at once, from C = G Gᵀ and h = G g."""
        C, h = products.C, products.h
        c = np.zeros_like(h)
        for task in range(h.shape[1]):
            product = h[:, task] + (C[:, task] * c).sum(axis=1)  # ⟨w, g_task⟩ so far
            square = C[:, task, task]
            against = (product < 0) & (square > 0)
            c[:, task] -= np.divide(product, square, out=np.zeros_like(square), where=against)
        return gp.Solution(c)


class PCGrad(ProjectionLearner):
    """Train with it: the memory, the batches and the checkpoints are the projection methods'."""

    name = "pcgrad"

    def projection(self):
        """Return what the projector solves."""
        return Surgery()
