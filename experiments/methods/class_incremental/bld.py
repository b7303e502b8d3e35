"""BLD, batch-level distillation (Fini et al., 2020): neither exemplars nor a stored model."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from gradproj.experiments.common.schema import ranged
from gradproj.experiments.methods.class_incremental.distillation import distil
from gradproj.experiments.methods.class_incremental.learner import IncrementalLearner
from gradproj.experiments.methods.setup import Step
from gradproj.experiments.streams import Task

__all__ = ["BLD"]


@dataclass(frozen=True)
class Options:
    """How the network is trained on each batch.

    Attributes
    ----------
    warm_up : int
        Steps that train only the new outputs.
    steps : int
        Steps of the whole network on the new labels and the recorded outputs.
    penalty : float
        Weight of the recorded outputs.
    """

    warm_up: int = ranged(1, low=0)
    steps: int = ranged(2, low=1)
    penalty: float = ranged(1.0, low=0.0)


class BLD(IncrementalLearner):
    """Record the old outputs on each batch before training on it, and distil them.

    As published: neither exemplars nor a stored model, a warm-up of the new outputs, then both
    losses. Not checked, because no code was found: the numbers of steps, the weight of the
    distillation, and the learning rate. The paper cites this publication for its row "MUC".
    """

    name = "bld"
    Options = Options
    rehearses = False

    def observe(self, task: Task, *batch: Tensor) -> Step:
        """Record the outputs, warm up the new ones, then train on both losses."""
        x, y = self.augmented(batch[0]), batch[1] - task.outputs.start
        if not self.old:
            return self.descend(self._new_loss(self.model(x), y))
        with torch.no_grad():
            recorded = self.model(x)[:, : self.old]
        for _ in range(self.options.warm_up):
            with torch.no_grad():
                features = self.network.features(x)
            self.descend(self._new_loss(self.network.head(features), y))
        for _ in range(self.options.steps):
            logits = self.model(x)
            kept = distil(recorded, logits[:, : self.old])
            loss = self._new_loss(logits, y) + self.options.penalty * kept
            step = self.descend(loss)
        return step

    def _new_loss(self, logits: Tensor, y: Tensor) -> Tensor:
        return functional.cross_entropy(logits[:, self.old : self.seen()], y)
