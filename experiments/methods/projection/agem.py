"""A-GEM (Chaudhry et al., 2019), as published and as behind the paper's table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

import gradproj as gp
from gradproj.experiments.common.schema import ranged
from gradproj.experiments.methods.projection.learner import LayerNames, ProjectionLearner
from gradproj.experiments.streams import Task

__all__ = ["AGEM"]


@dataclass(frozen=True)
class Options:
    """How A-GEM runs.

    Attributes
    ----------
    form : str
        "table": mean of the gradients of all old tasks' memory batches; "original": gradient
        of one batch of `reference` samples from all old memories together.
    strength : float
        Least multiple of the reference gradient that a violation adds.
    layers : str
        "all" is A-GEM as published.
    """

    form: Literal["table", "original"] = "table"
    reference: int = ranged(256, low=1)
    strength: float = ranged(0.0, low=0.0)
    layers: LayerNames = "all"


class AGEM(ProjectionLearner):
    """Closest step that does not increase the old tasks' mean memory loss."""

    name = "agem"
    Options = Options

    def projection(self) -> gp.Method:
        """One constraint on the mean."""
        return gp.AGEM(strength=self.options.strength)

    @classmethod
    def control(cls, options: Mapping[str, Any]) -> tuple[str, dict[str, Any]] | None:
        """Fine-tuning where nothing is replayed; γ of a mean on violations has no control."""
        return None if options["strength"] else ("single", {})

    def effort(self, task: Task) -> float:
        """As many gradients in every task, where one batch stands for all old ones."""
        return super().effort(task) if self.options.form == "table" else 1.0

    def old_batches(self) -> Iterable[tuple[Tensor, ...]]:
        """Draw a batch a task, or one from all old memories together."""
        if self.options.form == "table":
            yield from super().old_batches()
        elif self.old_tasks():
            yield self._reference()

    def _reference(self) -> tuple[Tensor, ...]:
        stored = [self.memory.all(task) for task in range(self.old_tasks())]
        sizes = [len(y) for _, y in stored]
        chosen = torch.randperm(sum(sizes), generator=self.generator)[: self.options.reference]
        # Draw first, gather after: each task's share is taken from its own memory.
        bounds = torch.tensor([0, *sizes]).cumsum(0)
        task = torch.bucketize(chosen, bounds[1:], right=True)
        order = task.argsort(stable=True)
        chosen, task = chosen[order], task[order]
        local = chosen - bounds[task]
        x = torch.cat([x[local[task == i]] for i, (x, _) in enumerate(stored)])
        y = torch.cat([y[local[task == i]] for i, (_, y) in enumerate(stored)])
        masks = torch.stack([self.mask(i) for i in range(self.old_tasks())])
        return x, y, masks[task]
