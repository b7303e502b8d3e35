"""A user-defined method: gradient surgery (PCGrad).

`Surgery` is the method for `gp.project` and for the torch adapter's `Projector`. `PCGrad` makes it
a method of the experiments. Run it in this folder with

    gradproj run --benchmark permuted-digits --method own_method:PCGrad --seeds 0 1 2

References
----------
Yu et al., Gradient surgery for multi-task learning, NeurIPS 2020.
"""

import numpy as np

import gradproj as gp
from gradproj.experiments import ProjectionLearner


class Surgery(gp.Method):
    r"""PCGrad: remove the conflict with each old task in turn.

    Starting from :math:`w = g`, one small problem is solved per old task i:

    .. math:: w \leftarrow \arg\min_u \|u - w\|^2 \quad \text{s.t.} \quad g_i^\top u \ge 0

    The closed form subtracts :math:`\min(g_i^\top w, 0) / \|g_i\|^2` times :math:`g_i`. A later
    step may undo an earlier one, so only the last task is certain not to conflict. The paper
    visits the tasks in random order; here it is the order of the rows.
    """

    def solve_layers(self, products):
        """Return the coefficients c of w = g + cᵀG for all layers at once."""
        C, h = products.C, products.h
        c = np.zeros_like(h)
        for task in range(h.shape[1]):
            product = h[:, task] + (C[:, task] * c).sum(axis=1)  # g_taskᵀ w
            square = C[:, task, task]
            conflicts = (product < 0) & (square > 0)
            c[:, task] -= np.divide(product, square, out=np.zeros_like(square), where=conflicts)
        return gp.Solution(c, corrected=(c != 0).any(axis=1))


class PCGrad(ProjectionLearner):
    """Train with gradient surgery; memory, batches and checkpoints come from the base class."""

    name = "pcgrad"

    def projection(self):
        """Return the method that the projector solves."""
        return Surgery()
