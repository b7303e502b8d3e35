"""Experience replay with a tiny memory (Chaudhry et al., 2019)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gradproj.adapters.torch import EpisodicMemory
from gradproj.experiments.common import seeds
from gradproj.experiments.common.schema import ranged
from gradproj.experiments.methods.learner import Learner
from gradproj.experiments.methods.setup import Setup, Step
from gradproj.experiments.streams import Task

__all__ = ["TinyER"]


@dataclass(frozen=True)
class Options:
    """How much is replayed.

    Attributes
    ----------
    batch : int
        Replayed samples per step. The paper uses the size of the new batch.
    policy : str
        Which samples the buffer keeps; see `gradproj.adapters.torch.EpisodicMemory`.
    """

    batch: int = ranged(10, low=1)
    policy: str = "reservoir"


class TinyER(Learner):
    """Step on the new batch and on a batch from one memory of all tasks.

    As published: one step on the mean of both batches, each sample scored among the outputs of its
    task, and a memory that receives the batch after the step, by default a reservoir. Not as
    released: the code of the publication draws reservoir positions with an error of one.

    The paper's row states neither its memory nor its network. Presets: `tinyer` has the networks of
    GEM; on MNIST permutations, `tinyer-own-network` has the 256-256 network of its publication.
    """

    name = "tinyer"
    scenarios = ("task", "domain", "class")
    augments = True
    Options = Options
    saved = (*Learner.saved, "memory")

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        # One buffer for the stream: all samples are added under one number.
        self.memory = EpisodicMemory(
            self.config.memory.budget(len(self.stream.tasks)),
            policy=self.options.policy,
            seed=seeds.derive(self.config.seed, "memory"),
            device=setup.device,
        )

    def stored_samples(self) -> int:
        """Count the samples in the memory."""
        return len(self.memory)

    def observe(self, task: Task, *batch: Tensor) -> Step:
        """Step on the mean loss of both batches, then offer the new one to the memory."""
        x, y = batch
        numbers = torch.full_like(y, task.index)
        together = [x, y, numbers]
        if len(self.memory):
            old = self.memory.sample(0, self.options.batch)
            together = [torch.cat(pair) for pair in zip(together, old, strict=True)]
        images, labels, tasks = together
        loss = self.loss(self.model, self.augmented(images), labels, self.mask_rows(tasks))
        step = self.descend(loss)
        self.memory.add(0, x, y, numbers)
        return step
