"""GD, global distillation (Lee et al., 2019), with and without outside data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from gradproj.experiments.common import seeds
from gradproj.experiments.common.schema import ranged
from gradproj.experiments.methods.class_incremental.distillation import (
    distil_weighted,
    ensemble_target,
    soft_cross_entropy,
)
from gradproj.experiments.methods.class_incremental.expert import ExpertLearner
from gradproj.experiments.methods.class_incremental.finetuning import Balanced, class_weights
from gradproj.experiments.methods.class_incremental.outside import outside_images
from gradproj.experiments.methods.setup import Phase, Setup
from gradproj.experiments.streams import Task

__all__ = ["GD"]


@dataclass(frozen=True)
class Options(Balanced):
    """How GD runs. Its balanced phase trains the classifier alone; all classes weigh the same.

    Attributes
    ----------
    outside : str
        Unlabelled images to distil on: "none", "shuffled" or a data set; see `outside_images`.
    pool : int
        Largest number of them to choose from. They are drawn once.
    confident : float
        Share of a task's outside images that have the largest outputs of the previous model, class
        by class. The others are drawn at random. There are as many outside as labelled images.
    """

    outside: str = "none"
    pool: int = ranged(50_000, low=1)
    confident: float = ranged(0.3, low=0.0, high=1.0)


class GD(ExpertLearner):
    """Distil all old classes jointly, an expert on the new ones, and both on outside data.

    As in the released code: all losses and their weights; in the balanced phase the samples weigh
    inversely to the size of their class in every term, the distillation of old classes counting the
    old classes only and that of the expert the new ones; the features are computed in training
    mode, so that the running statistics of batch norm follow the data. The preset of class-cifar100
    also has its schedule, in which the expert is trained for 200 epochs and the model for 180, and
    its augmentation with random brightness and contrast, `augment = "jitter-crop-flip"`.

    Not as released: with a budget that the number of classes does not divide, the remainder stays
    unused, while the released code gives it to the latest classes. Tiny Images, its outside data,
    were withdrawn; the preset `gd-outside` takes Tiny ImageNet.
    """

    name = "gd"
    Options = Options
    saved = (*ExpertLearner.saved, "weights", "rows")

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self.weights = torch.ones(0)
        # The outside images of this task, as many as it has labelled ones.
        self.rows = torch.zeros(0, dtype=torch.int64)
        self.pool = torch.zeros(0)
        if self.options.outside != "none":
            seed = seeds.derive(self.config.seed, "outside")
            self.pool = outside_images(
                self.options.outside,
                self.stream,
                root=setup.data_dir,
                limit=self.options.pool,
                seed=seed,
            )

    def phases(self, task: Task) -> Sequence[Phase]:
        """Expert, model, balanced classifier."""
        phases = super().phases(task)
        if task.index == 0:
            return phases
        options: Options = self.options
        return options.extended(phases, self.config.batch)

    def begin_task(self, task: Task) -> None:
        """Choose the outside images while the model is still the previous one."""
        labels = super().data(task, Phase("train", 1, 1))[1]
        self.weights = class_weights(labels, self.seen())
        if len(self.pool) and task.index:
            self.rows = self._choose(len(labels))
        super().begin_task(task)

    def data(self, task: Task, phase: Phase) -> tuple[Tensor, ...]:
        """Return labelled samples, and as many outside images if there are any."""
        labelled = super().data(task, phase)
        chosen = self.rows.to(self.pool.device)
        return (*labelled, self.pool[chosen]) if len(chosen) else labelled

    def objective(self, task: Task, x: Tensor, *rest: Tensor) -> Tensor:
        """CE with Q on outside images + (C_old / C) T² KL(previous) + (C_new / C) T² KL(expert)."""
        y, *others = rest
        seen, old = self.seen(), self.old
        balancing = self.stage == "balance"
        images = torch.cat([x, *(self.augmented(u) for u in others)])
        logits = self._logits(images, balancing)[:, :seen]
        weights = self.weights.to(x.device) if balancing else None
        loss = functional.cross_entropy(logits[: len(y)], y, weights, reduction="sum")
        if not old:
            return loss / len(logits)
        known, learned = self.recall(images), self.advise(task, images)
        if others:
            target = ensemble_target(known[len(y) :].softmax(1), learned[len(y) :].softmax(1))
            loss = loss + soft_cross_entropy(target, logits[len(y) :])
        kept = distil_weighted(known, logits[:, :old], self._shares(y, len(logits), 0, old))
        gained = distil_weighted(learned, logits[:, old:], self._shares(y, len(logits), old, seen))
        return loss / len(logits) + old / seen * kept + (seen - old) / seen * gained

    def expert_objective(self, task: Task, x: Tensor, y: Tensor, *others: Tensor) -> Tensor:
        """Let the expert be unsure about outside images too."""
        return super().expert_objective(task, x, y, *(self.augmented(u) for u in others))

    def _logits(self, images: Tensor, balancing: bool) -> Tensor:
        if not balancing:
            return self.model(images)  # type: ignore[no-any-return]
        with torch.no_grad():
            features = self.network.features(images)
        return self.network.head(features)  # type: ignore[no-any-return]

    def _shares(self, y: Tensor, count: int, start: int, stop: int) -> Tensor:
        """Return the weights of `count` samples, the first of which have the labels y.

        In the balanced phase, samples of the classes `start` to `stop` weigh inversely to the size
        of their class among these classes. All other samples weigh 1.
        """
        weights = torch.ones(count, device=y.device)
        if self.stage == "balance":
            # `weights` is total / (size of the class · classes): rescale it to these classes.
            sizes = 1 / self.weights[start:stop].to(y.device)
            inside = (y >= start) & (y < stop)
            weights[: len(y)][inside] = (sizes.mean() / sizes)[y[inside] - start]
        return weights

    def _choose(self, count: int) -> Tensor:
        """Draw rows of the pool: the largest outputs of each old class, and random ones."""
        wanted = int(self.options.confident * count) // self.old
        pieces = torch.split(self.pool, 1000)
        sure = torch.cat([self.recall(u.to(self.setup.device)).cpu() for u in pieces])
        best = sure.topk(min(wanted, len(sure)), dim=0).indices.flatten()
        others = count - len(best)
        drawn = torch.randint(len(self.pool), (others,), generator=self.generator)
        return torch.cat([best, drawn])
