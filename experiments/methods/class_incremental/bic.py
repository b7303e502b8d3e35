"""BiC, bias correction (Wu et al., 2019)."""

# ruff: noqa: ARG002 - hooks have the arguments that some method needs

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import functional

from gradproj.experiments.common.schema import ranged
from gradproj.experiments.methods.class_incremental.distillation import distil
from gradproj.experiments.methods.class_incremental.finetuning import FineTuning
from gradproj.experiments.methods.class_incremental.learner import IncrementalLearner
from gradproj.experiments.methods.setup import Phase, Setup, Step
from gradproj.experiments.streams import Task

__all__ = ["BiC"]


@dataclass(frozen=True)
class Options:
    """How the bias is estimated.

    Attributes
    ----------
    held_out : float
        Share of each class, new data and exemplars alike, that is kept for the bias.
    correction : FineTuning
        The phase that fits the bias.
    """

    held_out: float = ranged(0.1, low=0.0, high=0.5)
    correction: FineTuning = field(default_factory=lambda: FineTuning(epochs=20, lr=0.1))


class Bias(nn.Module):
    """One scale and one shift for the outputs of each task."""

    owner: Tensor

    def __init__(self, slices: Sequence[slice]) -> None:
        super().__init__()
        self.scales = nn.Parameter(torch.ones(len(slices)))
        self.shifts = nn.Parameter(torch.zeros(len(slices)))
        sizes = torch.tensor([part.stop - part.start for part in slices])
        owner = torch.arange(len(slices)).repeat_interleave(sizes)
        self.register_buffer("owner", owner, persistent=False)

    def forward(self, logits: Tensor, fitted: int = -1) -> Tensor:
        """Correct the outputs so far; only the task `fitted` gets gradients."""
        mine = torch.arange(len(self.scales), device=logits.device) == fitted
        scales = torch.where(mine, self.scales, self.scales.detach())
        shifts = torch.where(mine, self.shifts, self.shifts.detach())
        owner = self.owner[: logits.shape[1]]
        return logits * scales[owner] + shifts[owner]


class BiC(IncrementalLearner):
    """Distillation, then one scale and one shift for the new classes, fitted to held-out data.

    As published: the losses with the share λ of old classes, T = 2, and a balanced tenth of the
    data for the bias. Not checked, because the authors' code covers ImageNet alone: the schedule on
    CIFAR-100 and the rate of the correction.
    """

    name = "bic"
    averages = False
    Options = Options
    saved = (*IncrementalLearner.saved, "bias", "bias_optimizer", "held")

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        # It is the identity for classes that are not corrected yet.
        self.bias = Bias([task.outputs for task in self.stream.tasks]).to(setup.device)
        self.bias_optimizer = torch.optim.SGD(self.bias.parameters(), lr=0.1)
        self.held = torch.zeros(0, dtype=torch.bool)

    def phases(self, task: Task) -> Sequence[Phase]:
        """Train on most of the data, correct the bias on the rest."""
        phases = super().phases(task)
        if task.index == 0:
            return phases
        return [*phases, self.options.correction.phase("correction", self.config.batch)]

    def begin_task(self, task: Task) -> None:
        """Hold out equally many samples of each class."""
        super().begin_task(task)
        y = super().data(task, Phase("train", 1, 1))[1]
        self.held = torch.zeros(len(y), dtype=torch.bool)
        if task.index:
            least = int(torch.bincount(y).min())
            count = max(1, int(self.options.held_out * least))
            for label in sorted(set(y.tolist())):
                mine = torch.nonzero(y == label).flatten()
                self.held[mine[torch.randperm(len(mine), generator=self.generator)[:count]]] = True

    def begin_epoch(self, task: Task, phase: Phase, epoch: int) -> None:
        """Set the rate of the weights, or of the bias."""
        super().begin_epoch(task, phase, epoch)
        self.bias_optimizer.param_groups[0]["lr"] = self.optimizer.param_groups[0]["lr"]

    def data(self, task: Task, phase: Phase) -> tuple[Tensor, ...]:
        """Return the samples to train on, or those held out."""
        chosen = self.held if phase.name == "correction" else ~self.held
        return tuple(t[chosen.to(t.device)] for t in super().data(task, phase))

    def objective(self, task: Task, x: Tensor, *rest: Tensor) -> Tensor:
        """(1 − λ) CE + λ KL of the old outputs, λ = C_old / C."""
        (y,) = rest
        logits = self.bias(self.model(x)[:, : self.seen()])
        loss = functional.cross_entropy(logits, y)
        if not self.old:
            return loss
        with torch.no_grad():
            known = self.bias(self.recall(x))
        share = self.old / self.seen()
        return (1 - share) * loss + share * distil(known, logits[:, : self.old], squared=False)

    def observe(self, task: Task, *batch: Tensor) -> Step:
        """Train the network, or the bias of the new classes."""
        if self.stage != "correction":
            return super().observe(task, *batch)
        x, y = batch
        self.model.eval()
        with torch.no_grad():
            logits = self.model(x)[:, : self.seen()]
        loss = functional.cross_entropy(self.bias(logits, fitted=task.index), y)
        return self.descend(loss, self.bias_optimizer)

    def predict(self, x: Tensor, task: Task | None) -> Tensor:
        """Return the largest corrected output."""
        logits: Tensor = self.bias(self.model(x)[:, : self.seen()])
        return logits.argmax(1)
