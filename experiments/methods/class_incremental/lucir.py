"""LUCIR (Hou et al., 2019): a unified classifier by rebalancing."""

# ruff: noqa: ARG002 - hooks have the arguments that some method needs

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from gradproj.experiments.common.schema import ranged
from gradproj.experiments.methods.class_incremental.distillation import (
    feature_distance,
    margin_ranking,
)
from gradproj.experiments.methods.class_incremental.learner import IncrementalLearner
from gradproj.experiments.methods.setup import Setup, Step
from gradproj.experiments.networks import CosineHead, Network
from gradproj.experiments.streams import Task

__all__ = ["LUCIR"]


@dataclass(frozen=True)
class Options:
    """Weights of the losses.

    Attributes
    ----------
    penalty : float
        Weight of the feature distillation, times sqrt(old classes / new classes).
    hardest : int
        Number of new classes in the margin loss of an old class: those with the largest cosines.
    margin : float
        The margin.
    """

    penalty: float = ranged(5.0, low=0.0)
    hardest: int = ranged(2, low=1)
    margin: float = ranged(0.5, low=0.0)


class LUCIR(IncrementalLearner):
    """Cosine head, features kept in direction, and a margin between old and new classes.

    As published: all losses, their weights, imprinted weights of new classes and frozen ones of old
    classes; in the preset of class-cifar100 also the schedule and 20 exemplars per class. Predicted
    is the largest output; the classifiers by nearest means of the publication are left out.
    """

    name = "lucir"
    Options = Options

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self.require_all_classes()

    def build_model(self) -> nn.Module:
        """Make the network with a cosine head."""
        return self.build_network(head="cosine")

    def begin_task(self, task: Task) -> None:
        """Imprint the new classes: their mean direction, and the mean length of old weights."""
        super().begin_task(task)
        if task.index == 0:
            return
        x, y = task.train()
        features = functional.normalize(self.embed(x), dim=1)
        weight = self.network.head.weight
        with torch.no_grad():
            length = weight[: self.old].norm(dim=1).mean()
            for label in range(task.outputs.start, task.outputs.stop):
                mean = features[(y == label).to(features.device)].mean(0)
                weight[label] = length * functional.normalize(mean, dim=0)

    def objective(self, task: Task, x: Tensor, *rest: Tensor) -> Tensor:
        """CE + λ (1 − cosine to the teacher's features) + margin ranking on old exemplars."""
        (y,) = rest
        head = self.network.head
        assert isinstance(head, CosineHead)
        features = self.network.features(x)
        logits = head(features)[:, : self.seen()]
        loss = functional.cross_entropy(logits, y)
        if self.old:
            options, new = self.options, self.seen() - self.old
            assert isinstance(self.teacher, Network)
            with torch.no_grad():
                known = self.teacher.features(x)
            penalty = options.penalty * math.sqrt(self.old / new)
            cosines = logits / head.scale
            loss = loss + penalty * feature_distance(known, features)
            loss = loss + margin_ranking(cosines, y, self.old, options.hardest, options.margin)
        return loss

    def observe(self, task: Task, *batch: Tensor) -> Step:
        """Step, and restore the weights of the old classes."""
        step = super().observe(task, *batch)
        assert isinstance(self.teacher, Network)
        with torch.no_grad():
            self.network.head.weight[: self.old] = self.teacher.head.weight[: self.old]
        return step
