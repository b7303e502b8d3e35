"""A-GEM (Chaudhry et al., 2019), as published and as behind the paper's table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

import gradproj as gp
from gradproj.experiments.common.schema import ranged
from gradproj.experiments.methods.projection.learner import (
    LayerNames,
    ProjectionLearner,
    Replay,
    replay_alone,
)
from gradproj.experiments.streams import Task

__all__ = ["AGEM"]


@dataclass(frozen=True)
class Options:
    """How A-GEM runs.

    Attributes
    ----------
    form : str
        "table": the reference is the mean or sum of the gradients of all old tasks' memory batches,
        as in the code behind the paper's table; "original": the gradient of one batch of
        `reference` samples from all old memories together, as first published.
    reference : int
        Samples of that batch.
    strength : float
        Least multiple of the reference gradient that a violation adds; 0 as first published.
    replay : str
        Whether the reference is the "mean" or the "sum" of the old gradients. Without a strength
        both are the same.
    ridge : float
        Added to the squared length of the reference; 0.001 in the code behind the paper's table.
    layers : str
        "all" is A-GEM as published.
    """

    form: Literal["table", "original"] = "table"
    reference: int = ranged(256, low=1)
    strength: float = ranged(1.0, low=0.0)
    replay: Replay = "mean"
    ridge: float = ranged(0.0, low=0.0)
    layers: LayerNames = "all"


class AGEM(ProjectionLearner):
    """Closest step that does not increase the old tasks' mean memory loss.

    The released forms differ, and the paper does not say which one is behind its table. Presets:
    `agem-original` (one batch from all memories, no strength, as first published), `agem` (mean of
    the tasks' gradients, strength 0.5), `agem-sum` (sum, 0.5), `agem-strong` (mean, 3) and
    `agem-released` (the authors' file: mean, 0.5, whole memories, ridge 0.001).
    """

    name = "agem"
    Options = Options

    def projection(self) -> gp.Method:
        """Return the problem with one constraint on the mean."""
        options = self.options
        return gp.AGEM(strength=options.strength, replay=options.replay, ridge=options.ridge)

    @classmethod
    def control(cls, options: Mapping[str, Any]) -> tuple[str, dict[str, Any]] | None:
        """Return the replay term alone, added on violations only.

        The original form draws one batch from all memories, for which there is no control.
        """
        if options["strength"] and options.get("form") == "original":
            return None
        form, layers = options.get("replay", "mean"), options.get("layers", "all")
        return replay_alone(options["strength"], form, "violated", layers)

    def effort(self, task: Task) -> float:
        """Return 1 for the original form: one batch represents all old tasks."""
        return super().effort(task) if self.options.form == "table" else 1.0

    def old_batches(self) -> Iterable[tuple[Tensor, ...]]:
        """Draw one batch per old task, or one from all old memories together."""
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
