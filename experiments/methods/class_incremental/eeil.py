"""End-to-end incremental learning, EEIL or End2End (Castro et al., 2018)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from gradproj.experiments.common.schema import ranged
from gradproj.experiments.methods.class_incremental.distillation import distil, distil_slices
from gradproj.experiments.methods.class_incremental.finetuning import Balanced
from gradproj.experiments.methods.class_incremental.learner import IncrementalLearner, frozen
from gradproj.experiments.methods.setup import Phase, Setup
from gradproj.experiments.streams import Task

__all__ = ["EEIL"]


@dataclass(frozen=True)
class Options(Balanced):
    """The balanced phase, the form of the distillation, and noise.

    Attributes
    ----------
    form : str
        "published": the losses of EEIL's paper. "gd": those of GD's experiments, which are behind
        the number in the paper's table.
    noise : float
        Deviation of the noise added to the gradients of the first epoch. In epoch e it is divided
        by (1 + e)^0.55. 0 adds no noise.
    """

    form: Literal["published", "gd"] = "published"
    noise: float = ranged(0.0, low=0.0)


class EEIL(IncrementalLearner):
    """Cross-entropy and distillation of each earlier step, then fine-tuning on a balanced set.

    As published: the losses, and the balanced phase, in which the new step's outputs are distilled
    from the model after the first phase; in the preset of class-cifar100 also the schedule and the
    noise. The preset `eeil-gd` has the form and the schedule of GD's experiments.

    Not as published: the set of twelve forms of each image is not stored. `augment = "twelvefold"`
    draws one form per image and epoch, with twelve times the epochs. The released code also
    multiplies the weight decay by the squared norm of the weights, which is taken for an error.
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
        options: Options = self.options
        return options.extended(phases, self.config.batch)

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
        """CE and the distillation of earlier steps; while balancing, of this step's outputs too."""
        (y,) = rest
        logits = self.model(x)[:, : self.seen()]
        loss = functional.cross_entropy(logits, y)
        if not self.old:
            return loss
        kept = self._kept_as_in_gd if self.options.form == "gd" else self._kept
        return loss + kept(task, x, logits)

    def _kept(self, task: Task, x: Tensor, logits: Tensor) -> Tensor:
        """Σ_s KL at T = 2 over earlier steps, and over this one from the model before balancing."""
        known = self.recall(x)
        terms = [
            distil(known[:, part], logits[:, part], squared=False) for part in self.old_slices()
        ]
        if self.stage == "balance":
            learned = self._graduated(x)[:, task.outputs]
            terms.append(distil(learned, logits[:, task.outputs], squared=False))
        return torch.stack(terms).sum()

    def _kept_as_in_gd(self, task: Task, x: Tensor, logits: Tensor) -> Tensor:
        """Σ_s (|s| / C) T² KL over the C classes that the teacher knows.

        While balancing, the teacher is the model after the first phase, for all classes.
        """
        if self.stage == "balance":
            slices = [*self.old_slices(), task.outputs]
            return distil_slices(self._graduated(x), logits, slices, self.seen())
        return distil_slices(self.recall(x), logits, self.old_slices(), self.old)

    @torch.no_grad()
    def _graduated(self, x: Tensor) -> Tensor:
        found: Tensor = self.graduate(x)
        return found

    def adjust_gradients(self) -> None:
        """Add the noise of the epoch to the gradients."""
        if not self.options.noise:
            return
        deviation = self.options.noise / (1 + self.epoch) ** 0.55
        for parameter in self.model.parameters():
            if parameter.grad is not None:
                drawn = torch.randn(parameter.shape, generator=self.generator)
                parameter.grad += deviation * drawn.to(parameter)
