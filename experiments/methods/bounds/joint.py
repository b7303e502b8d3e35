"""Joint training: the upper bound that keeps all data."""

# ruff: noqa: ARG002 - hooks have the arguments that some method needs

from __future__ import annotations

import torch
from torch import Tensor

from gradproj.experiments.methods.learner import Learner
from gradproj.experiments.methods.setup import Phase, Step
from gradproj.experiments.streams import Task

__all__ = ["Joint"]


class Joint(Learner):
    """Train a new network after each task on the data of all tasks so far.

    This is not a published system. It is the upper bound that most publications print.
    """

    name = "joint"
    scenarios = ("task", "domain", "class")
    averages = False
    augments = True

    def begin_task(self, task: Task) -> None:
        """Start from the initial weights again."""
        self.model.load_state_dict(self.build_model().state_dict())
        self.optimizer = self.build_optimizer()

    def data(self, task: Task, phase: Phase) -> tuple[Tensor, ...]:
        """Return images, labels and task numbers of all tasks so far."""
        parts = [old.train() for old in self.stream.tasks[: task.index + 1]]
        numbers = [torch.full_like(y, i) for i, (_, y) in enumerate(parts)]
        return (
            torch.cat([x for x, _ in parts]),
            torch.cat([y for _, y in parts]),
            torch.cat(numbers),
        )

    def stored_samples(self) -> int:
        """Count all training samples."""
        return sum(len(task.training) for task in self.stream.tasks)

    def effort(self, task: Task) -> float:
        """Return the number of tasks whose data is trained on."""
        return task.index + 1.0

    def observe(self, task: Task, *batch: Tensor) -> Step:
        """Step on a mixed batch, each sample scored among its own task's outputs."""
        x, y, numbers = batch
        masks = self.mask_rows(numbers)
        return self.descend(self.loss(self.model, self.augmented(x), y, masks))
