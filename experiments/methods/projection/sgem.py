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
        "original": draw a task and use only its memory; "table": pass the batches of all old tasks
        through the network, which moves batch-norm statistics, as the code behind the paper's
        table does.
    strength : float
        Least multiple of the drawn gradient that a violation adds; 0 as first published. The drawn
        gradient is the mean of the old gradients in expectation, so the strength compares with that
        of methods that replay the mean.
    ridge : float
        Added to the squared length of the drawn gradient; 0.001 in the code behind the paper's
        table.
    """

    form: Literal["table", "original"] = "table"
    strength: float = ranged(1.0, low=0.0)
    ridge: float = ranged(0.0, low=0.0)


class SGEM(ProjectionLearner):
    """GEM with the constraint of one old task, drawn at each step.

    As first published: the form "original" without a strength (preset `sgem-original`). The code
    behind the paper's table has a strength of 0.5, a ridge of 0.001 and takes whole memories
    (preset `sgem-released`).
    """

    name = "sgem"
    Options = Options

    def projection(self) -> gp.Method:
        """Return the problem with one constraint: of the drawn task, or of the only one."""
        options = self.options
        if options.form == "original":
            return gp.AGEM(strength=options.strength, ridge=options.ridge)
        seed = seeds.derive(self.config.seed, "sgem")
        return gp.SGEM(strength=options.strength, seed=seed, ridge=options.ridge)

    @classmethod
    def control(cls, options: Mapping[str, Any]) -> tuple[str, dict[str, Any]] | None:
        """Return fine-tuning without a strength. With one, there is no control."""
        return None if options["strength"] else ("single", {})

    def effort(self, task: Task) -> float:
        """Return 1 for the original form: it draws one old task."""
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
