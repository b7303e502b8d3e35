"""Synaptic intelligence (Zenke et al., 2017)."""

# ruff: noqa: ARG002 - hooks have the arguments that some method needs

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gradproj.experiments.common.schema import ranged
from gradproj.experiments.methods.learner import Learner
from gradproj.experiments.methods.setup import Setup, Step
from gradproj.experiments.methods.vectors import flat_gradient, flat_weights, set_gradient
from gradproj.experiments.streams import Task

__all__ = ["SI"]


@dataclass(frozen=True)
class Options:
    """The penalty.

    Attributes
    ----------
    penalty : float
        Its weight c.
    damping : float
        ξ, which bounds the importance of weights that hardly moved.
    """

    penalty: float = ranged(0.1, low=0.0)
    damping: float = ranged(0.1, low=1e-12)


class SI(Learner):
    """Penalize changes of weights by how much their path lowered the loss.

    ω_j += −(∂CE/∂θ_j) Δθ_j at each step; at the end of a task, which moved θ_j by δ_j,
    Ω_j += ω_j / (δ_j² + ξ).
    L = CE + c Σ_j Ω_j (θ_j − θ*_j)² with θ* the weights at the end of the last task.

    As published: these equations, in which the gradient along the path is that of the loss without
    the penalty. Negative importances are kept; some implementations set them to 0.
    """

    name = "si"
    scenarios = ("task", "domain", "class")
    Options = Options
    saved = (*Learner.saved, "importance", "path", "anchor")

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self.anchor = flat_weights(self.model)
        self.importance = torch.zeros_like(self.anchor)
        self.path = torch.zeros_like(self.anchor)

    def observe(self, task: Task, *batch: Tensor) -> Step:
        """Step on the new loss and the penalty, and follow the path."""
        x, y = batch
        self.optimizer.zero_grad()
        loss = self.loss(self.model, x, y, self.mask(task))
        loss.backward()  # type: ignore[no-untyped-call]
        before, gradient = flat_weights(self.model), flat_gradient(self.model)
        pull = self.importance * (before - self.anchor)
        set_gradient(self.model, gradient + 2 * self.options.penalty * pull)
        self.optimizer.step()
        self.path -= gradient * (flat_weights(self.model) - before)
        return Step(loss.detach())

    def end_task(self, task: Task) -> None:
        """Turn the path into importance; the task's start was the anchor."""
        weights = flat_weights(self.model)
        moved = (weights - self.anchor).square()
        self.importance += self.path / (moved + self.options.damping)
        self.path.zero_()
        self.anchor = weights
