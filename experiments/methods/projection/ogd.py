"""Orthogonal gradient descent (Farajtabar et al., 2020)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

import gradproj as gp
from gradproj.experiments.common.schema import ranged
from gradproj.experiments.methods.learner import Learner
from gradproj.experiments.methods.setup import Setup
from gradproj.experiments.methods.vectors import flat_gradient, flat_weights, set_gradient
from gradproj.experiments.streams import Task

__all__ = ["OGD"]


@dataclass(frozen=True)
class Options:
    """How much is stored.

    Attributes
    ----------
    samples : int
        Stored directions per task.
    """

    samples: int = ranged(20, low=1)


class OGD(Learner):
    """Steps orthogonal to stored gradients of the old tasks' true-class outputs.

    w = g − Σ_k ⟨g, u_k⟩ u_k. Unlike in the constraint Bᵀw = 0 of `ours`, each direction belongs to
    one sample and is computed only once.

    As published: the variant with the gradients of true-class outputs. Not checked against the
    authors' code: the number of samples, which is smaller here, and the learning rate.
    """

    name = "ogd"
    Options = Options
    saved = (*Learner.saved, "basis")

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self.basis = flat_weights(self.model).new_zeros((0, flat_weights(self.model).numel()))

    def adjust_gradients(self) -> None:
        """Keep the part of the gradient that is orthogonal to the basis."""
        if len(self.basis):
            set_gradient(self.model, self._orthogonal(flat_gradient(self.model)))

    def end_task(self, task: Task) -> None:
        """Add the directions of some samples of the task to the basis."""
        x, y = (t.to(self.setup.device) for t in task.train())
        rows = torch.randperm(len(x), generator=self.generator)[: self.options.samples]
        self.model.eval()
        directions = []
        for row in rows.tolist():
            self.optimizer.zero_grad()
            self.model(x[row : row + 1])[0, y[row]].backward()
            directions.append(self._orthogonal(flat_gradient(self.model)))
        self.optimizer.zero_grad()
        self.model.train()
        self.basis = torch.cat([self.basis, gp.gram_schmidt(torch.stack(directions))])

    def _orthogonal(self, vector: Tensor) -> Tensor:
        # A second pass removes the rounding error that the first leaves in float32.
        for _ in range(2):
            vector = vector - (self.basis @ vector) @ self.basis
        return vector
