"""Elastic weight consolidation, in the form behind the GEM and the paper's tables."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gradproj.experiments.common.schema import ranged
from gradproj.experiments.methods.learner import Learner
from gradproj.experiments.methods.setup import Setup, Step
from gradproj.experiments.methods.vectors import flat_gradient, flat_weights, set_gradient
from gradproj.experiments.streams import Task

__all__ = ["EWC"]


@dataclass(frozen=True)
class Options:
    """The penalty.

    Attributes
    ----------
    penalty : float
        Its weight λ.
    samples : int
        The importance of a task is estimated from its first samples, of this number n.
    """

    penalty: float = ranged(1.0, low=0.0)
    samples: int = ranged(10, low=1)


class EWC(Learner):
    """Quadratic penalty on moving weights that old tasks need.

    L = CE + λ Σ_k Σ_j F_kj (θ_j − θ*_kj)², with F_k the square of the mean gradient on the first
    n samples of task k. Its gradient 2λ (θ Σ F − Σ F θ*) needs only the two sums, so neither memory
    nor time grows with the number of tasks.

    As in GEM's released code, from which the paper's row comes. Not as first published (Kirkpatrick
    et al., 2017): there the penalty has λ/2, and the Fisher information is the mean over samples of
    squared gradients, with labels drawn from the model. Values of λ do not transfer.
    """

    name = "ewc"
    scenarios = ("task", "domain", "class")
    Options = Options
    saved = (*Learner.saved, "weight", "centre", "first")

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self.weight = torch.zeros_like(flat_weights(self.model))
        self.centre = torch.zeros_like(self.weight)
        self.first: list[Tensor] = []

    def begin_task(self, task: Task) -> None:
        """Estimate the importances of the previous task with its final weights."""
        if not self.first:
            return
        x, y = self.first
        # The outputs of the new task did not compete in the previous one.
        mask = self.masks[: task.index].amax(0)
        if self.stream.scenario != "class":
            mask = self.mask(task.index - 1)
        self.model.train()
        self.optimizer.zero_grad()
        self.loss(self.model, x, y, mask).backward()  # type: ignore[no-untyped-call]
        fisher = flat_gradient(self.model).square()
        self.weight += fisher
        self.centre += fisher * flat_weights(self.model)
        self.first = []

    def observe(self, task: Task, *batch: Tensor) -> Step:
        """Step on the new loss and the penalty, and keep the first samples."""
        step = super().observe(task, *batch)
        self._remember(*batch)
        return step

    def adjust_gradients(self) -> None:
        """Add the gradient of the penalty."""
        pull = self.weight * flat_weights(self.model) - self.centre
        set_gradient(self.model, flat_gradient(self.model) + 2 * self.options.penalty * pull)

    def _remember(self, x: Tensor, y: Tensor) -> None:
        missing = self.options.samples - (len(self.first[1]) if self.first else 0)
        if not self.first:
            self.first = [x[:missing], y[:missing]]
        elif missing > 0:
            self.first = [
                torch.cat([a, b[:missing]]) for a, b in zip(self.first, (x, y), strict=True)
            ]
