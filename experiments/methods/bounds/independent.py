"""Independent: one narrow network per task, without sharing and without forgetting."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from gradproj.experiments.methods.learner import Learner
from gradproj.experiments.methods.setup import Step
from gradproj.experiments.streams import Task

__all__ = ["Independent"]


@dataclass(frozen=True)
class Options:
    """The networks.

    Attributes
    ----------
    network : mapping
        Options of the networks that make them narrow.
    finetune : bool
        Whether a network starts from the parameters of the previous one.
    """

    network: dict[str, Any] = field(default_factory=dict)
    finetune: bool = True


class Independent(Learner):
    """A network of its own for each task, of a fraction of the width.

    As in GEM's released code: the widths of the presets, a network that starts from the previous
    one, and only a task's own outputs where tasks have different classes. Not as the paper says:
    its networks together are not as large as one of the others, because convolutions shrink with
    the square of the width.
    """

    name = "independent"
    averages = False
    Options = Options

    def build_model(self) -> nn.Module:
        """Make all networks; each has only its own task's outputs."""
        return nn.ModuleList(
            self.build_network(
                outputs=task.outputs.stop - task.outputs.start,
                purpose=f"weights {task.index}",
                **self.options.network,
            )
            for task in self.stream.tasks
        )

    def begin_task(self, task: Task) -> None:
        """Copy the parameters of the previous network, without its batch-norm statistics.

        A head with another number of classes keeps its initial weights.
        """
        if task.index > 0 and self.options.finetune:
            with torch.no_grad():
                for new, old in zip(
                    self.network(task).parameters(),
                    self.network(task.index - 1).parameters(),
                    strict=True,
                ):
                    if new.shape == old.shape:
                        new.copy_(old)

    def network(self, task: Task | int) -> nn.Module:
        """Return the network of a task."""
        assert isinstance(self.model, nn.ModuleList)
        return self.model[task if isinstance(task, int) else task.index]

    def observe(self, task: Task, *batch: Tensor) -> Step:
        """Train the task's own network."""
        x, y = batch
        logits = self.network(task)(x)
        return self.descend(nn.functional.cross_entropy(logits, y - task.outputs.start))

    def predict(self, x: Tensor, task: Task | None) -> Tensor:
        """Predict with the network of the task."""
        assert task is not None
        logits: Tensor = self.network(task)(x)
        return logits.argmax(1) + int(task.outputs.start)
