"""Memory aware synapses (Aljundi et al., 2018)."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from gradproj.experiments.common.schema import ranged
from gradproj.experiments.methods.learner import Learner
from gradproj.experiments.methods.setup import Setup
from gradproj.experiments.methods.vectors import flat_gradient, flat_weights, set_gradient
from gradproj.experiments.streams import Task

__all__ = ["MAS"]


@dataclass(frozen=True)
class Options:
    """The penalty.

    Attributes
    ----------
    penalty : float
        Its weight λ.
    samples : int
        Samples per task over which the importance is averaged.
    """

    penalty: float = ranged(1.0, low=0.0)
    samples: int = ranged(200, low=1)


class MAS(Learner):
    """Penalize changes of weights by how much they move the outputs.

    Ω_j = Σ_tasks mean_x |∂‖f(x)‖² / ∂θ_j|, L = CE + (λ/2) Σ_j Ω_j (θ_j − θ*_j)², with f the outputs
    that compete.

    As published: the squared norm, absolute gradients sample by sample, and the sum over tasks.
    Some public implementations take the norm itself, or the gradient of a batch. λ and the number
    of samples are choices made here.
    """

    name = "mas"
    scenarios = ("task", "domain", "class")
    Options = Options
    saved = (*Learner.saved, "importance", "anchor")

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self.anchor = flat_weights(self.model)
        self.importance = torch.zeros_like(self.anchor)

    def adjust_gradients(self) -> None:
        """Add the gradient of the penalty."""
        pull = self.importance * (flat_weights(self.model) - self.anchor)
        set_gradient(self.model, flat_gradient(self.model) + self.options.penalty * pull)

    def end_task(self, task: Task) -> None:
        """Add the task's importance: the mean of the absolute gradients, sample by sample."""
        x, _ = task.train()
        rows = torch.randperm(len(x), generator=self.generator)[: self.options.samples]
        self.model.eval()
        competing = self.mask(task) == 0
        total = torch.zeros_like(self.importance)
        for row in rows.tolist():
            self.optimizer.zero_grad()
            output = self.model(x[row : row + 1].to(self.setup.device))[:, competing]
            output.square().sum().backward()
            total += flat_gradient(self.model).abs()
        self.optimizer.zero_grad()
        self.model.train()
        self.importance += total / len(rows)
        self.anchor = flat_weights(self.model)
