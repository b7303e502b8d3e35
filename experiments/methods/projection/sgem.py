"""S-GEM (Chaudhry et al., 2019), as published and as behind the paper's table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

import gradproj as gp
from gradproj.experiments.common import seeds
from gradproj.experiments.common.schema import ranged
from gradproj.experiments.methods.projection.learner import ProjectionLearner
from gradproj.experiments.streams import Task

__all__ = ["SGEM"]


@dataclass(frozen=True)
class Options:
    """How S-GEM runs.

    Attributes
    ----------
    form : str
        "original": draw a task and use its memory alone; "table": pass the batches of all old
        tasks through the network, which moves batch-norm statistics, as the published code does.
    strength : float
        Least multiple of the drawn gradient that a violation adds.
    """

    form: Literal["table", "original"] = "table"
    strength: float = ranged(0.0, low=0.0)


class SGEM(ProjectionLearner):
    """GEM with the constraint of one old task, drawn at each step."""

    name = "sgem"
    Options = Options

    def projection(self) -> gp.Method:
        """One constraint: of the drawn task's gradient, or of the only one."""
        if self.options.form == "original":
            return gp.AGEM(strength=self.options.strength)
        seed = seeds.derive(self.config.seed, "sgem")
        return gp.SGEM(strength=self.options.strength, seed=seed)

    @classmethod
    def control(cls, options: Mapping[str, Any]) -> tuple[str, dict[str, Any]] | None:
        """Fine-tuning where nothing is replayed; γ of one old gradient has no control."""
        return None if options["strength"] else ("single", {})

    def effort(self, task: Task) -> float:
        """As many gradients in every task, where one batch stands for all old ones."""
        return super().effort(task) if self.options.form == "table" else 1.0

    def old_batches(self) -> Iterable[tuple[Tensor, ...]]:
        """Draw a batch from every old task, or from one drawn old task."""
        if self.options.form == "table":
            yield from super().old_batches()
        elif self.old_tasks():
            task = int(torch.randint(self.old_tasks(), (), generator=self.generator))
            size = self.config.memory.batch
            x, y = self.memory.sample(task, size) if size else self.memory.all(task)
            yield x, y, self.mask(task)
