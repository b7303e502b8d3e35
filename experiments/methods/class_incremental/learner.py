"""The base of the class-incremental systems: a teacher, exemplars and a loss."""

# ruff: noqa: ARG002 - hooks have the arguments that some method needs

from __future__ import annotations

import copy
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from gradproj.experiments.common import seeds
from gradproj.experiments.methods.learner import Learner
from gradproj.experiments.methods.memory.exemplars import Exemplars
from gradproj.experiments.methods.memory.features import embed, require_network
from gradproj.experiments.methods.setup import Phase, Setup, Step
from gradproj.experiments.networks import Network
from gradproj.experiments.streams import Task

__all__ = ["IncrementalLearner", "frozen", "renew"]


def frozen(model: nn.Module) -> nn.Module:
    """Copy a model in evaluation mode, without gradients."""
    return copy.deepcopy(model).eval().requires_grad_(False)


def renew(head: nn.Module, initial: nn.Module, outputs: slice) -> None:
    """Give some outputs of a head the weights that they have in `initial`."""
    with torch.no_grad():
        for name in ("weight", "bias"):
            # A cosine head has no bias.
            if getattr(initial, name, None) is not None:
                new = getattr(initial, name)[outputs]
                getattr(head, name)[outputs] = new.to(getattr(head, name))


class IncrementalLearner(Learner):
    """Train on new data and exemplars with the loss of a method.

    The head has an output for every class of the stream from the start. Outputs of classes that
    have not occurred yet take part in no loss and no prediction. They get their initial weights
    when their task begins, so the head behaves like one that grows. Each phase has a new optimizer.

    Attributes
    ----------
    teacher : nn.Module
        The model at the end of the last task. It is never trained.
    exemplars : Exemplars
    stage : str
        Name of the current phase.
    """

    scenarios = ("class",)
    augments = True
    # Whether exemplars are stored and trained on.
    rehearses: bool = True
    saved = (*Learner.saved, "teacher", "exemplars", "stage")

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        require_network(self.network, self.config.network)
        memory = self.config.memory
        self.exemplars = Exemplars(
            memory.budget(len(self.stream.tasks)),
            memory.per_class,
            memory.policy,
            seed=seeds.derive(self.config.seed, "memory"),
        )
        if self.rehearses:
            self.exemplars.share(
                self.stream.outputs
            )  # raises now if the budget is too small for all classes
        self.teacher = frozen(self.model)
        self.stage = ""

    def stored_samples(self) -> int:
        """Count the exemplars."""
        return len(self.exemplars) if self.rehearses else 0

    def objective(self, task: Task, x: Tensor, *rest: Tensor) -> Tensor:
        """Return the loss of a batch: images, labels and the further tensors of `data`."""
        (y,) = rest
        return functional.cross_entropy(self.model(x)[:, : self.seen()], y)

    # The runner's hooks ------------------------------------------------------------------------

    def begin_task(self, task: Task) -> None:
        """Give the new classes their initial outputs."""
        self.renew_outputs(task)

    def begin_phase(self, task: Task, phase: Phase) -> None:
        """Store the name of the phase and make a new optimizer."""
        self.stage = phase.name
        self.optimizer = self.build_optimizer()

    def data(self, task: Task, phase: Phase) -> tuple[Tensor, ...]:
        """Return the new samples and the exemplars."""
        x, y = task.train()
        if not (self.rehearses and len(self.exemplars)):
            return x, y
        old_x, old_y = self.exemplars.all()
        return torch.cat([x, old_x]), torch.cat([y, old_y])

    def observe(self, task: Task, *batch: Tensor) -> Step:
        """Step on the method's loss."""
        x, *rest = batch
        return self.descend(self.objective(task, self.augmented(x), *rest))

    def end_task(self, task: Task) -> None:
        """Choose the exemplars of the new classes, then make the model the teacher."""
        if self.rehearses:
            self.exemplars.admit(*task.train(), self.seen(), self.embed)
        self.teacher.load_state_dict(self.model.state_dict())

    # For use in methods ---------------------------------------------------------------------

    @property
    def network(self) -> Network:
        """The network inside the model."""
        return cast(Network, self.model)  # checked in __init__

    @property
    def old(self) -> int:
        """The number of classes before this task."""
        return int(self.stream.tasks[max(self.current, 0)].outputs.start)

    def old_slices(self) -> list[slice]:
        """Return the outputs of each earlier task."""
        return [task.outputs for task in self.stream.tasks[: self.current]]

    @torch.no_grad()
    def recall(self, x: Tensor) -> Tensor:
        """Return the teacher's outputs for the old classes."""
        logits: Tensor = self.teacher(x)
        return logits[:, : self.old]

    def embed(self, x: Tensor) -> Tensor:
        """Return the features of many images, in evaluation mode."""
        return embed(self.network, x)

    def renew_outputs(self, task: Task) -> None:
        """Give the outputs of the task's classes their initial weights."""
        initial = self.build_model()
        assert isinstance(initial, Network)
        renew(self.network.head, initial.head, task.outputs)
