"""End-to-end incremental learning, EEIL or End2End (Castro et al., 2018)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import functional

from gradproj.experiments.common.schema import ranged
from gradproj.experiments.methods.class_incremental.distillation import distil
from gradproj.experiments.methods.class_incremental.finetuning import FineTuning
from gradproj.experiments.methods.class_incremental.learner import IncrementalLearner, frozen
from gradproj.experiments.methods.setup import Phase, Setup
from gradproj.experiments.streams import Task

__all__ = ["EEIL"]


@dataclass(frozen=True)
class Options:
    """The balanced phase, and noise.

    Attributes
    ----------
    balance : FineTuning
        The phase on equally many samples of each class.
    noise : float
        Deviation of the noise added to the gradients of the first epoch. In epoch e it is divided
        by (1 + e)^0.55. 0 adds no noise.
    """

    balance: FineTuning = field(default_factory=FineTuning)
    noise: float = ranged(0.0, low=0.0)


class EEIL(IncrementalLearner):
    """Cross-entropy and distillation of each earlier step, then fine-tuning on a balanced set.

    The twelve forms of each image are `augment = "twelvefold"`, which the preset of class-cifar100
    has: one form is drawn per image and epoch, with twelve times the epochs.
    """

    name = "eeil"
    Options = Options
    saved = (*IncrementalLearner.saved, "graduate", "epoch")

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        # The model as it was after the first phase of this step.
        self.graduate = frozen(self.model)
        self.epoch = 0

    def phases(self, task: Task) -> Sequence[Phase]:
        """Add the balanced phase, once there is something to balance."""
        phases = super().phases(task)
        if task.index == 0:
            return phases
        return [*phases, self.options.balance.phase("balance", self.config.batch)]

    def begin_phase(self, task: Task, phase: Phase) -> None:
        """Before balancing, choose as many samples of the new classes as there are of the old."""
        super().begin_phase(task, phase)
        if phase.name == "balance":
            self.graduate.load_state_dict(self.model.state_dict())
            count = max(len(images) for images in self.exemplars.images.values())
            self.exemplars.choose(*task.train(), count, self.embed)

    def begin_epoch(self, task: Task, phase: Phase, epoch: int) -> None:
        """Set the rate, and keep the epoch for the noise."""
        super().begin_epoch(task, phase, epoch)
        # Twelve epochs over single forms are one epoch over the expanded images.
        self.epoch = epoch // 12 if self.config.augment == "twelvefold" else epoch

    def data(self, task: Task, phase: Phase) -> tuple[Tensor, ...]:
        """Return new data and exemplars, or the balanced set, which the exemplars hold by then."""
        return self.exemplars.all() if phase.name == "balance" else super().data(task, phase)

    def objective(self, task: Task, x: Tensor, *rest: Tensor) -> Tensor:
        """CE + Σ_s KL at T = 2 over earlier steps; while balancing, this step's outputs too."""
        (y,) = rest
        logits = self.model(x)[:, : self.seen()]
        loss = functional.cross_entropy(logits, y)
        if self.old:
            known = self.recall(x)
            for part in self.old_slices():
                loss = loss + distil(known[:, part], logits[:, part], squared=False)
        if self.stage == "balance":
            with torch.no_grad():
                learned = self.graduate(x)[:, task.outputs]
            loss = loss + distil(learned, logits[:, task.outputs], squared=False)
        return loss

    def disturb(self) -> None:
        """Add the noise of the epoch to the gradients."""
        if not self.options.noise:
            return
        deviation = self.options.noise / (1 + self.epoch) ** 0.55
        for parameter in self.model.parameters():
            if parameter.grad is not None:
                drawn = torch.randn(parameter.shape, generator=self.generator)
                parameter.grad += deviation * drawn.to(parameter)
