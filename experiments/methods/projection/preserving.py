"""The base of all input-space projections, which store moments of inputs and no samples."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from gradproj.adapters.torch import Preserver
from gradproj.experiments.methods.learner import Learner
from gradproj.experiments.methods.setup import Setup
from gradproj.experiments.streams import Task

__all__ = ["PreservingLearner"]

# Samples per forward pass at the end of a task. The patches of a convolution are nine times as
# large as its input, and 50 images of a small ResNet18 still fit into 40 MB.
BATCH = 50


class PreservingLearner(Learner):
    """Train with steps that keep each layer's outputs for the inputs of old tasks.

    After each task, the second moments of every layer's inputs are measured on some of its training
    samples. No sample is kept. A method gives `preservation()`, and has the option `samples`: how
    many samples to measure, 0 for all of them.

    Where the task is known at test time, each task has outputs of its own. The head is then left
    out: no later task changes the rows that an old task uses.
    """

    scenarios = ("task", "domain", "class")
    augments = True
    saved = (*Learner.saved, "preserver")

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        own_outputs = self.stream.scenario == "task" and hasattr(self.model, "head")
        self.preserver = Preserver(
            self.model, exclude=("head",) if own_outputs else (), **self.preservation()
        )
        self.preserver.attach(self.optimizer)

    def preservation(self) -> dict[str, Any]:
        """Return the arguments of `Preserver` that make the method."""
        raise NotImplementedError

    @classmethod
    def control(
        cls,
        options: Mapping[str, Any],  # noqa: ARG003 - the same whatever they are
    ) -> tuple[str, dict[str, Any]] | None:
        """Return fine-tuning: no sample is replayed."""
        return "single", {}

    def end_task(self, task: Task) -> None:
        """Measure the inputs of the task's samples and add them to those of the old tasks."""
        super().end_task(task)
        self.model.eval()
        with torch.no_grad(), self.preserver.observe():
            for x in self._measured(task):
                self.model(x.to(self.setup.device))
        self.model.train()
        self.preserver.consolidate()

    def _measured(self, task: Task) -> Iterator[Tensor]:
        x, _ = task.train()
        rows = torch.randperm(len(x), generator=self.generator)[: self.options.samples or len(x)]
        return (x[chosen] for chosen in torch.split(rows, BATCH))
