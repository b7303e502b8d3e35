"""TPL, topology-preserving learning (Tao et al., 2020), with a stand-in for its graph."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from gradproj.experiments.common.schema import ranged
from gradproj.experiments.methods.class_incremental.distillation import topology_loss
from gradproj.experiments.methods.class_incremental.learner import IncrementalLearner
from gradproj.experiments.methods.setup import Setup
from gradproj.experiments.streams import Task

__all__ = ["TPL"]


@dataclass(frozen=True)
class Options:
    """How the topology is kept.

    Attributes
    ----------
    penalty : float
        Weight of the topology's loss.
    vertices : int
        Vertices whose edges are compared at each step.
    """

    penalty: float = ranged(1.0, low=0.0)
    vertices: int = ranged(64, low=3)


class TPL(IncrementalLearner):
    """Cross-entropy, while the cosines between stored images keep their pattern.

    As published: edge weights are cosines of features, and the loss is minus Pearson's correlation
    of all edge weights before and now. After each task the vertices get features of the new
    network. Not as published: the paper grows an elastic Hebbian graph by competitive learning.
    Here the vertices are exemplars (with `memory.policy` "kmeans" the images nearest to cluster
    centres), each pair is an edge, and each step compares the edges of some
    vertices drawn at random. Not checked, because no code was found: the weight of the loss, the
    learning schedule, and how edges age.
    """

    name = "tpl"
    Options = Options
    saved = (*IncrementalLearner.saved, "vertices")

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        # Features of all exemplars at the end of the last task.
        self.vertices = torch.zeros(0)

    def objective(self, task: Task, x: Tensor, *rest: Tensor) -> Tensor:
        """CE on new data and exemplars − λ correlation of edges then and now."""
        loss = super().objective(task, x, *rest)
        if not self.old:
            return loss
        images, _ = self.exemplars.all()
        rows = torch.randperm(len(images), generator=self.generator)[: self.options.vertices]
        now = self.network.features(self.augmented(images[rows].to(x.device)))
        penalty: float = self.options.penalty
        return loss + penalty * topology_loss(self.vertices[rows].to(now), now)

    def end_task(self, task: Task) -> None:
        """Choose exemplars, then measure the features of all of them."""
        super().end_task(task)
        self.vertices = functional.normalize(self.embed(self.exemplars.all()[0]), dim=1).cpu()
