"""DR, distillation and retrospection (Hou et al., 2018), as the paper's table has it from GD."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

from gradproj.experiments.methods.class_incremental.distillation import distil, distil_slices
from gradproj.experiments.methods.class_incremental.expert import ExpertLearner
from gradproj.experiments.streams import Task

__all__ = ["DR"]


class DR(ExpertLearner):
    """Keep the outputs of the previous model, and learn those of an expert on the new task.

    As in GD's experiments, from which the paper's number comes: the loss, its weights, and the
    training of the expert. DR's own publication has other networks and data sets, and a known task
    at test time. It was not checked.
    """

    name = "dr"

    def objective(self, task: Task, x: Tensor, *rest: Tensor) -> Tensor:
        """CE + Σ_s (|s| / C) T² KL(previous) over old tasks s + (|new| / C) T² KL(expert)."""
        (y,) = rest
        seen = self.seen()
        logits = self.model(x)[:, :seen]
        loss = functional.cross_entropy(logits, y)
        if self.old:
            new = distil(self.advise(task, x), logits[:, task.outputs])
            loss = loss + distil_slices(self.recall(x), logits, self.old_slices(), seen)
            loss = loss + (seen - self.old) / seen * new
        return loss
