"""GD, global distillation (Lee et al., 2019), with and without outside data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import functional

from gradproj.experiments.common import seeds
from gradproj.experiments.common.schema import ranged
from gradproj.experiments.methods.class_incremental.distillation import (
    distil,
    ensemble_target,
    soft_cross_entropy,
)
from gradproj.experiments.methods.class_incremental.expert import ExpertLearner
from gradproj.experiments.methods.class_incremental.finetuning import FineTuning, class_weights
from gradproj.experiments.methods.class_incremental.outside import outside_images
from gradproj.experiments.methods.setup import Phase, Setup
from gradproj.experiments.streams import Task

__all__ = ["GD"]


@dataclass(frozen=True)
class Options:
    """How GD runs.

    Attributes
    ----------
    balance : FineTuning
        The last phase, of the classifier alone, in which all classes weigh the same.
    outside : str
        Unlabelled images to distil on: "none", "shuffled" or a data set; see `outside_images`.
    pool : int
        At most so many of them, drawn once, to choose from.
    confident : float
        Share of a task's outside images (as many as labelled ones) that is chosen where the
        previous model is most sure, class by class; the others are drawn at random.
    """

    balance: FineTuning = field(default_factory=FineTuning)
    outside: str = "none"
    pool: int = ranged(50_000, low=1)
    confident: float = ranged(0.3, low=0.0, high=1.0)


class GD(ExpertLearner):
    """Distils all old classes jointly, an expert on the new ones, and both on outside data."""

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
        return [*phases, self.options.balance.phase("balance", self.config.batch)]

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
        known, learnt = self.recall(images), self.advise(task, images)
        if others:
            target = ensemble_target(known[len(y) :].softmax(1), learnt[len(y) :].softmax(1))
            loss = loss + soft_cross_entropy(target, logits[len(y) :])
        kept = old / seen * distil(known, logits[:, :old])
        gained = (seen - old) / seen * distil(learnt, logits[:, old:])
        return loss / len(logits) + kept + gained

    def expert_objective(self, task: Task, x: Tensor, y: Tensor, *others: Tensor) -> Tensor:
        """Let the expert be unsure about outside images too."""
        return super().expert_objective(task, x, y, *(self.augmented(u) for u in others))

    def _logits(self, images: Tensor, balancing: bool) -> Tensor:
        if not balancing:
            return self.model(images)  # type: ignore[no-any-return]
        self.model.eval()
        with torch.no_grad():
            features = self.network.features(images)
        return self.network.head(features)  # type: ignore[no-any-return]

    def _choose(self, count: int) -> Tensor:
        """Draw rows of the pool: the surest of each old class, the others at random."""
        wanted = int(self.options.confident * count) // self.old
        pieces = torch.split(self.pool, 1000)
        sure = torch.cat([self.recall(u.to(self.setup.device)).softmax(1).cpu() for u in pieces])
        best = sure.topk(min(wanted, len(sure)), dim=0).indices.flatten()
        others = count - len(best)
        drawn = torch.randint(len(self.pool), (others,), generator=self.generator)
        return torch.cat([best, drawn])
