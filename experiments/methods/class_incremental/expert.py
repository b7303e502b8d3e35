"""A second teacher: an expert that is first trained on the new classes alone."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from gradproj.experiments.methods.class_incremental.distillation import unsureness
from gradproj.experiments.methods.class_incremental.learner import IncrementalLearner
from gradproj.experiments.methods.setup import Phase, Setup, Step
from gradproj.experiments.streams import Task

__all__ = ["ExpertLearner"]


class ExpertLearner(IncrementalLearner):
    """Train an expert on the new classes before the model, starting with the second task.

    The expert starts from the previous model. It learns the new classes, and a uniform output for
    all other images.
    """

    averages = False
    saved = (*IncrementalLearner.saved, "expert", "expert_optimizer")

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self.expert = copy.deepcopy(self.model)
        self.expert_optimizer = self._optimizer_of(self.expert)

    def phases(self, task: Task) -> Sequence[Phase]:
        """Train the expert, then the model."""
        phases = super().phases(task)
        if task.index == 0:
            return phases
        return [Phase("expert", self.config.epochs, self.config.batch), *phases]

    def begin_phase(self, task: Task, phase: Phase) -> None:
        """Start the expert from the previous model."""
        super().begin_phase(task, phase)
        if phase.name == "expert":
            self.expert.load_state_dict(self.model.state_dict())
            self.expert_optimizer = self._optimizer_of(self.expert)

    def begin_epoch(self, task: Task, phase: Phase, epoch: int) -> None:
        """Set the same rate for both."""
        super().begin_epoch(task, phase, epoch)
        for group in self.expert_optimizer.param_groups:
            group["lr"] = self.optimizer.param_groups[0]["lr"]

    def observe(self, task: Task, *batch: Tensor) -> Step:
        """Train the expert or the model."""
        if self.stage != "expert":
            self.expert.eval()
            return super().observe(task, *batch)
        self.expert.train()
        x, *rest = batch
        loss = self.expert_objective(task, self.augmented(x), *rest)
        return self.descend(loss, self.expert_optimizer)

    def expert_objective(self, task: Task, x: Tensor, y: Tensor, *others: Tensor) -> Tensor:
        """Cross-entropy on new samples among new classes; all other images leave it unsure."""
        logits = self.expert(torch.cat([x, *others]))[:, task.outputs]
        new = torch.zeros(len(logits), dtype=torch.bool, device=x.device)
        new[: len(y)] = y >= self.old
        loss: Tensor = logits.sum() * 0.0
        if new.any():
            labels = y[new[: len(y)]] - self.old
            loss = loss + functional.cross_entropy(logits[new], labels)
        return loss if new.all() else loss + unsureness(logits[~new])

    @torch.no_grad()
    def advise(self, task: Task, x: Tensor) -> Tensor:
        """Return the expert's outputs for the new classes."""
        logits: Tensor = self.expert(x)
        return logits[:, task.outputs]

    def _optimizer_of(self, model: nn.Module) -> torch.optim.Optimizer:
        config = self.config
        return torch.optim.SGD(
            model.parameters(),
            lr=config.lr,
            momentum=config.momentum,
            weight_decay=config.weight_decay,
        )
