"""The training step that all gradient-projection methods share."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

import gradproj as gp
from gradproj.adapters.torch import EpisodicMemory, Projector
from gradproj.experiments import rng
from gradproj.experiments.learner import Learner, Setup, Step
from gradproj.experiments.streams import Task

__all__ = ["ProjectionLearner", "layer_groups"]


def layer_groups(model: nn.Module, layers: str) -> str | list[list[str]]:
    """Translate "five" (groups of five consecutive tensors); the projector knows the others."""
    if layers != "five":
        return layers
    names = [name for name, _ in model.named_parameters()]
    return [names[i : i + 5] for i in range(0, len(names), 5)]


class ProjectionLearner(Learner):
    """Steps along the new gradient, projected against those of the old tasks' memories.

    A method gives `projection()`; it may also choose other `old_batches`, one for each
    gradient that it wants to project against.
    """

    saved = (*Learner.saved, "memory", "projector")

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        memory = self.config.memory
        self.memory = EpisodicMemory(
            memory.per_task, policy=memory.policy, seed=rng.derive(self.config.seed, "memory")
        )
        layers = getattr(self.options, "layers", "all")
        self.projector = Projector(
            self.model, self.projection(), layers=layer_groups(self.model, layers)
        )

    def projection(self) -> gp.Method:
        """Return the method that the projector solves."""
        raise NotImplementedError

    def old_batches(self) -> Iterable[tuple[Tensor, ...]]:
        """Draw a batch from the memory of each old task, with the outputs that compete there."""
        size = self.config.memory.batch
        for task in range(self.current):
            x, y = self.memory.sample(task, size) if size else self.memory.all(task)
            yield x, y, self.mask(task)

    def observe(self, task: Task, *batch: Tensor) -> Step:
        """Make one projected step, then remember the batch."""
        x, y = batch
        seen: list[Tensor] = []

        def loss(model: nn.Module, *sample: Tensor) -> Tensor:
            value = self.loss(model, *sample)
            if sample[0] is x:
                seen.append(value.detach())
            return value

        self.projector.backward_batches(loss, (x, y, self.mask(task)), list(self.old_batches()))
        self.optimizer.step()
        self.memory.add(task.index, x, y)
        return self.describe(seen[-1])

    def describe(self, loss: Tensor) -> Step:
        """Report the loss of a step and what the projector did in it."""
        last = self.projector.last
        if last is None or self.current == 0:
            return Step(loss)
        corrected = torch.as_tensor(last.corrected, dtype=torch.float64)
        ranks = torch.as_tensor(last.rank).reshape(-1)
        return Step(loss, float(corrected.mean()), ranks.tolist())
