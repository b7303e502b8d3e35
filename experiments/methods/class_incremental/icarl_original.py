"""iCaRL as published (Rebuffi et al., 2017), for unknown tasks."""

# ruff: noqa: ARG002 - hooks have the arguments that some method needs

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from gradproj.experiments.methods.class_incremental.learner import IncrementalLearner
from gradproj.experiments.methods.setup import Setup
from gradproj.experiments.streams import Task

__all__ = ["ICaRLOriginal"]


class ICaRLOriginal(IncrementalLearner):
    """Sigmoid outputs with distilled targets, and the nearest mean of exemplars in features.

    As published: the loss, the teacher and the features of the herding in evaluation mode, means
    over mirrored images too, and the decay of the preset, whose 2e-5 is the published penalty
    1e-5 ‖θ‖² in torch's convention. Not as published: shares are rounded down, so that the budget
    holds, and the herding never chooses an image twice, while the published code skips repeats
    after it has counted them.
    """

    name = "icarl-original"
    averages = False
    saved = (*IncrementalLearner.saved, "means")

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self.require_all_classes()
        self.means: Tensor | None = None

    def renew_outputs(self, task: Task) -> None:
        """Do nothing: iCaRL trains the outputs of later classes towards 0."""

    def objective(self, task: Task, x: Tensor, *rest: Tensor) -> Tensor:
        """Return the binary cross-entropy; the teacher gives the targets of old outputs."""
        (y,) = rest
        logits = self.model(x)
        target = functional.one_hot(y, self.stream.outputs).to(logits)
        if self.old:
            target[:, : self.old] = self.recall(x).sigmoid()
        return functional.binary_cross_entropy_with_logits(logits, target)

    def end_task(self, task: Task) -> None:
        """Choose exemplars, then measure the mean of each class."""
        super().end_task(task)
        means = []
        for label in range(self.seen()):
            images = self.exemplars.images[label]
            mean = functional.normalize(self.embed(images), dim=1).mean(0)
            if self.config.augment != "none":
                # As published: mirrored images have the same weight.
                mirrored = functional.normalize(self.embed(images.flip(3)), dim=1).mean(0)
                mean = (mean + mirrored) / 2
            means.append(functional.normalize(mean, dim=0))
        self.means = torch.stack(means)

    def predict(self, x: Tensor, task: Task | None) -> Tensor:
        """Return the nearest mean."""
        if self.means is None:
            return super().predict(x, task)
        features = functional.normalize(self.network.features(x), dim=1)
        return torch.cdist(features, self.means.to(features)).argmin(1)
