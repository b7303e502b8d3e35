"""MUC (Liu et al., 2020): more classifiers, less forgetting; its form on top of LwF."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import combinations

import torch
from torch import Tensor, nn
from torch.nn import functional

from gradproj.experiments.common import seeds
from gradproj.experiments.common.schema import ranged
from gradproj.experiments.common.seeds import seeded
from gradproj.experiments.methods.class_incremental.distillation import distil
from gradproj.experiments.methods.class_incremental.finetuning import FineTuning
from gradproj.experiments.methods.class_incremental.learner import IncrementalLearner, renew
from gradproj.experiments.methods.class_incremental.outside import outside_images
from gradproj.experiments.methods.setup import Phase, Setup, Step
from gradproj.experiments.networks import Network
from gradproj.experiments.streams import Task

__all__ = ["MUC"]


@dataclass(frozen=True)
class Options:
    """How MUC runs.

    Attributes
    ----------
    sides : int
        Side classifiers of each task.
    training : FineTuning
        The phase that trains them.
    outside : str
        Unlabelled images on which they should disagree; see `outside_images`.
    exemplars : bool
        Also train the network on exemplars, with all classes seen competing, as `lwf` does. The
        published runs have none.
    """

    sides: int = ranged(3, low=2)
    training: FineTuning = field(default_factory=lambda: FineTuning(lr=0.1))
    outside: str = "shuffled"
    exemplars: bool = False


class ManyHeads(nn.Module):
    """A network, and side heads on the same features; called, it is the network alone."""

    def __init__(self, network: Network, sides: int) -> None:
        super().__init__()
        self.network = network
        inputs, outputs = network.head.in_features, network.head.out_features
        self.sides = nn.ModuleList(nn.Linear(inputs, outputs) for _ in range(sides))

    def forward(self, x: Tensor) -> Tensor:
        """Return the main head's outputs."""
        return self.network(x)  # type: ignore[no-any-return]

    def both(self, x: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Return the main head's outputs and each side head's."""
        features = self.network.features(x)
        return self.network.head(features), [side(features) for side in self.sides]


class MUC(IncrementalLearner):
    """Distil the main head, and side heads that were trained to disagree on other images.

    As in the released code: the side heads of a task are made with the task and are not
    re-initialized before their phase. From the second task on, weight decay therefore shrinks them
    while the network is trained. Only the side heads of the latest task are distilled. All losses
    and weights are those of its file for CIFAR-100 and LwF; its form on top of MAS is left out.

    Not as released: classes have the order of seed 1993 as everywhere here, not 1988, and outside
    images are drawn with replacement. `exemplars = true` is an addition; the released code has a
    budget for exemplars that it does not use.
    """

    name = "muc"
    averages = False
    Options = Options

    def __init__(self, setup: Setup) -> None:
        self.rehearses = setup.config.options.exemplars
        super().__init__(setup)
        seed = seeds.derive(self.config.seed, "outside")
        name, root = self.options.outside, setup.data_dir
        self.pool = outside_images(name, self.stream, root=root, seed=seed)

    def build_model(self) -> nn.Module:
        """Make the network with its side heads."""
        network = self.build_network()
        assert isinstance(network, Network)
        with seeded(seeds.derive(self.config.seed, "sides")):
            return ManyHeads(network, self.options.sides)

    @property
    def network(self) -> Network:
        """The network without its side heads."""
        assert isinstance(self.model, ManyHeads)
        return self.model.network

    def renew_outputs(self, task: Task) -> None:
        """Give the new outputs of the main head and of the side heads their initial weights."""
        initial = self.build_model()
        assert isinstance(initial, ManyHeads)
        assert isinstance(self.model, ManyHeads)
        renew(self.network.head, initial.network.head, task.outputs)
        for side, start in zip(self.model.sides, initial.sides, strict=True):
            renew(side, start, task.outputs)

    def data(self, task: Task, phase: Phase) -> tuple[Tensor, ...]:
        """Return new data and exemplars, if there are any; for the side heads, new data alone."""
        return task.train() if phase.name == "sides" else super().data(task, phase)

    def phases(self, task: Task) -> Sequence[Phase]:
        """Train the network, then this task's side heads."""
        return [*super().phases(task), self.options.training.phase("sides", self.config.batch)]

    def objective(self, task: Task, x: Tensor, *rest: Tensor) -> Tensor:
        """(1 − α) CE + α (KL of the main head + mean KL of the last task's side heads)."""
        (y,) = rest
        assert isinstance(self.model, ManyHeads)
        assert isinstance(self.teacher, ManyHeads)
        logits, sides = self.model.both(x)
        if self.rehearses:
            loss = functional.cross_entropy(logits[:, : self.seen()], y)
        else:
            loss = functional.cross_entropy(logits[:, task.outputs], y - task.outputs.start)
        if task.index == 0:
            return loss
        with torch.no_grad():
            known, known_sides = self.teacher.both(x)
        last = self.stream.tasks[task.index - 1].outputs
        kept = distil(known[:, : self.old], logits[:, : self.old], squared=False)
        terms = [
            distil(before[:, last], now[:, last], squared=False)
            for before, now in zip(known_sides, sides, strict=True)
        ]
        share = task.index / (task.index + 1)
        return (1 - share) * loss + share * (kept + torch.stack(terms).mean())

    def observe(self, task: Task, *batch: Tensor) -> Step:
        """Train everything, or the side heads alone."""
        if self.stage != "sides":
            return super().observe(task, *batch)
        x, y = batch
        drawn = torch.randint(len(self.pool), (len(x),), generator=self.generator)
        others = self.augmented(self.pool[drawn].to(x.device))
        loss = self.side_objective(task, self.augmented(x), y, others)
        return self.descend(loss)

    def side_objective(self, task: Task, x: Tensor, y: Tensor, others: Tensor) -> Tensor:
        """Σ_k CE_k on labelled images − Σ_{k<l} mean |p_k − p_l| on outside ones."""
        assert isinstance(self.model, ManyHeads)
        self.model.eval()
        with torch.no_grad():
            features = self.network.features(torch.cat([x, others]))
        logits = [side(features)[:, task.outputs] for side in self.model.sides]
        labels = y - task.outputs.start
        right = [functional.cross_entropy(z[: len(x)], labels) for z in logits]
        odds = [z[len(x) :].softmax(1) for z in logits]
        apart = [(p - q).abs().mean() for p, q in combinations(odds, 2)]
        return torch.stack(right).sum() - torch.stack(apart).sum()
