"""Dark experience replay, DER and DER++ (Buzzega et al., 2020)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from gradproj.adapters.torch import EpisodicMemory
from gradproj.experiments.common import seeds
from gradproj.experiments.common.schema import ranged
from gradproj.experiments.methods.learner import Learner
from gradproj.experiments.methods.setup import Setup, Step
from gradproj.experiments.streams import Task

__all__ = ["DERpp"]


@dataclass(frozen=True)
class Options:
    """The replayed losses.

    Attributes
    ----------
    alpha : float
        Weight of the stored outputs.
    beta : float
        Weight of the stored labels. 0 is DER.
    batch : int
        Replayed samples per step and loss.
    """

    alpha: float = ranged(0.3, low=0.0)
    beta: float = ranged(0.5, low=0.0)
    batch: int = ranged(10, low=1)


class DERpp(Learner):
    """Replay stored outputs: L = CE + α MSE(z, z') + β CE(x'', y'').

    As published: the outputs are those before the step on their batch, images are stored before
    augmentation, both draws from the reservoir are independent, and the squared error is a mean
    over all outputs. Not as published: outputs of later tasks do not compete in the cross-entropy.
    """

    name = "derpp"
    scenarios = ("task", "domain", "class")
    augments = True
    Options = Options
    saved = (*Learner.saved, "memory")

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self.memory = EpisodicMemory(
            self.config.memory.budget(len(self.stream.tasks)),
            policy="reservoir",
            seed=seeds.derive(self.config.seed, "memory"),
            device=setup.device,
        )

    def stored_samples(self) -> int:
        """Count the samples in the memory."""
        return len(self.memory)

    def observe(self, task: Task, *batch: Tensor) -> Step:
        """Step on the three losses, then offer the batch with its outputs to the memory."""
        x, y = batch
        outputs = self.model(self.augmented(x))
        loss = functional.cross_entropy(outputs + self.mask(task), y)
        if len(self.memory):
            loss = loss + self._replayed()
        step = self.descend(loss)
        self.memory.add(0, x, y, torch.full_like(y, task.index), outputs.detach())
        return step

    def _replayed(self) -> Tensor:
        options = self.options
        x, _, _, stored = self.memory.sample(0, options.batch)
        loss: Tensor = options.alpha * functional.mse_loss(self.model(self.augmented(x)), stored)
        if options.beta:
            x, y, numbers, _ = self.memory.sample(0, options.batch)
            mask = self.mask_rows(numbers)
            loss = loss + options.beta * self.loss(self.model, self.augmented(x), y, mask)
        return loss
