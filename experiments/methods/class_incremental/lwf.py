"""LwF (Li and Hoiem, 2016), in the class-incremental form of the paper's table and its own."""

# ruff: noqa: ARG002 - hooks have the arguments that some method needs

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor
from torch.nn import functional

from gradproj.experiments.common.schema import ranged
from gradproj.experiments.methods.class_incremental.distillation import distil_slices
from gradproj.experiments.methods.class_incremental.learner import IncrementalLearner
from gradproj.experiments.methods.setup import Setup
from gradproj.experiments.streams import Task

__all__ = ["LwF"]


@dataclass(frozen=True)
class Options:
    """Distillation and exemplars.

    Attributes
    ----------
    exemplars : bool
        Train on exemplars too, with all classes seen competing, as in the paper's table. Without
        them the new classes compete among themselves alone, as first published.
    penalty : float
        Weight of the distillation. 0 is plain rehearsal.
    """

    exemplars: bool = True
    penalty: float = ranged(1.0, low=0.0)


class LwF(IncrementalLearner):
    """Cross-entropy, and each old task's outputs kept as the previous model had them.

    The default is LwF in GD's experiments, from which the paper's number comes; its loss and its
    weights are as released there. The preset `lwf-original` (`exemplars = false`) has the loss of
    the first publication. Not as published there: the new outputs have no warm-up phase, and each
    old task's term has the weight of its share and the factor T².
    """

    name = "lwf"
    Options = Options

    def __init__(self, setup: Setup) -> None:
        self.rehearses = setup.config.options.exemplars
        super().__init__(setup)

    def objective(self, task: Task, x: Tensor, *rest: Tensor) -> Tensor:
        """CE + λ Σ_s (|s| / C_old) T² KL of the outputs of each old task s."""
        (y,) = rest
        logits = self.model(x)[:, : self.seen()]
        if self.rehearses:
            loss = functional.cross_entropy(logits, y)
        else:
            loss = functional.cross_entropy(logits[:, self.old :], y - self.old)
        if self.old and self.options.penalty:
            kept = distil_slices(self.recall(x), logits, self.old_slices(), self.old)
            loss = loss + self.options.penalty * kept
        return loss
