"""iCaRL in the task-incremental form of the GEM and the paper's tables."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from gradproj.adapters.torch import herd
from gradproj.experiments.common.schema import ranged
from gradproj.experiments.methods.learner import Learner
from gradproj.experiments.methods.setup import Setup, Step
from gradproj.experiments.streams import Task

__all__ = ["ICaRL"]


@dataclass(frozen=True)
class Options:
    """Exemplars and distillation.

    Attributes
    ----------
    exemplars : int
        Budget of all classes together.
    penalty : float
        Weight of the distillation.
    """

    exemplars: int = ranged(1280, low=1)
    penalty: float = ranged(1.0, low=0.0)


class ICaRL(Learner):
    """Cross-entropy, distillation on exemplars, and nearest mean of exemplars, on the outputs.

    Each step adds, for every old task, the KL divergence from the outputs that the network had
    after the last task, on one random exemplar of each of its classes.

    As in GEM's released code: this loss, herding and means on outputs instead of features, and
    exemplars of older classes that are not reduced, so that their number exceeds the budget. Not as
    released: outputs for targets and means are computed in evaluation mode, and exemplars are
    chosen once per task; there it happens after each epoch. For iCaRL as first published see
    `icarl-original`.
    """

    name = "icarl"
    scenarios = ("task",)
    averages = False
    Options = Options
    saved = (*Learner.saved, "images", "targets", "means")

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self.require_all_classes()
        # For each class: its exemplars, their outputs after the last task, and their mean output.
        self.images: dict[int, Tensor] = {}
        self.targets: dict[int, Tensor] = {}
        self.means: dict[int, Tensor] = {}

    def stored_samples(self) -> int:
        """Count the exemplars of all classes."""
        return sum(map(len, self.images.values()))

    def observe(self, task: Task, *batch: Tensor) -> Step:
        """Step on the new batch and on the exemplars of the old tasks."""
        x, y = batch
        loss = self.loss(self.model, x, y, self.mask(task))
        for old in self.stream.tasks[: task.index]:
            loss = loss + self.options.penalty * self._distilled(old)
        return self.descend(loss)

    def end_task(self, task: Task) -> None:
        """Choose the exemplars of the new classes, then measure all of them."""
        x, y = (t.to(self.setup.device) for t in task.train())
        count = max(1, self.options.exemplars // self.seen())
        self.model.eval()
        with torch.no_grad():
            for label in range(task.outputs.start, task.outputs.stop):
                images = x[y == label]
                self.images[label] = images[herd(self.model(images)[:, task.outputs], count)]
            for label, images in self.images.items():
                self.targets[label] = self.model(images)
                self.means[label] = self.targets[label].mean(0)
        self.model.train()

    def predict(self, x: Tensor, task: Task | None) -> Tensor:
        """Return the nearest mean. Before there are means, guess uniformly."""
        assert task is not None
        labels = torch.arange(task.outputs.start, task.outputs.stop, device=x.device)
        if task.outputs.start not in self.means:
            return labels[torch.arange(len(x), device=x.device) % len(labels)]
        means = torch.stack([self.means[int(label)] for label in labels])
        return labels[torch.cdist(self.model(x), means).argmin(1)]

    def _distilled(self, old: Task) -> Tensor:
        images, targets = [], []
        for label in range(old.outputs.start, old.outputs.stop):
            row = int(torch.randint(len(self.images[label]), (), generator=self.generator))
            images.append(self.images[label][row])
            targets.append(self.targets[label][row])
        now = functional.log_softmax(self.model(torch.stack(images))[:, old.outputs], 1)
        before = functional.softmax(torch.stack(targets)[:, old.outputs], 1)
        return functional.kl_div(now, before, reduction="batchmean")
