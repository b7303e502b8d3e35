"""Gradient projection memory (Saha et al., 2021)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gradproj.experiments.common.errors import ConfigError
from gradproj.experiments.common.schema import ranged
from gradproj.experiments.methods.projection.preserving import PreservingLearner
from gradproj.experiments.streams import Task

__all__ = ["GPM", "Options"]


@dataclass(frozen=True)
class Options:
    """The size of the basis.

    Attributes
    ----------
    share : tuple of float
        Share of the inputs' energy that the basis of each layer must hold after a task, in the
        order of the layers; the last one counts for all further layers.
    growth : float
        Added to the share with each task; it never exceeds 1.
    samples : int
        Training samples of a task by which its basis is chosen; 0 takes all.
    """

    share: tuple[float, ...] = (0.97,)
    growth: float = ranged(0.0, low=0.0)
    samples: int = ranged(300, low=0)

    def __post_init__(self) -> None:
        if not self.share or not all(0 < share <= 1 for share in self.share):
            raise ConfigError(
                f"options.share={list(self.share)} is invalid: expected one or more numbers > 0 "
                "and <= 1"
            )


class GPM(PreservingLearner):
    """Steps orthogonal to a basis of the old tasks' inputs, layer by layer: w = g − g Bᵀ B.

    As published: the rule that grows the basis, with the published shares and samples in the
    presets of CIFAR-100 and `mnist-permutations-gpm`. Not as released: that code keeps one
    direction fewer after the first task than the paper's rule. Networks here have biases, whose
    input is a constant 1, except in `mnist-permutations-gpm`. Batch norm is trained in all tasks,
    not in the first alone.
    """

    name = "gpm"
    Options = Options

    def preservation(self) -> dict[str, Any]:
        """Return a hard projection. `end_task` sets the shares."""
        return {"share": self.options.share[0]}

    def end_task(self, task: Task) -> None:
        """Grow the basis of each layer to its share."""
        own, names = self.options.share, self.preserver.protected
        self.preserver.share = {
            name: min(1.0, own[min(i, len(own) - 1)] + self.options.growth * task.index)
            for i, name in enumerate(names)
        }
        super().end_task(task)
