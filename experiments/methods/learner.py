"""What a method is to the runner: how it trains on a batch, what it predicts, what it remembers."""

# ruff: noqa: ARG002, ARG003 - a hook gets what other methods need of it

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from gradproj.experiments.common import seeds
from gradproj.experiments.common.errors import ConfigError
from gradproj.experiments.methods.augmentation import AUGMENTATIONS
from gradproj.experiments.methods.setup import NoOptions, Phase, Setup, Step, make_network
from gradproj.experiments.streams import Task

__all__ = ["Learner"]


# Larger batches of a convolutional network do not fit into a CPU's cache.
BATCH = 200


class Learner:
    """Base of all methods; alone it is plain fine-tuning.

    A method is one file in `gradproj.experiments.methods` with one public subclass. The runner
    calls, for each task: `begin_task`; for each of `phases`: `begin_phase`, then for each epoch
    `begin_epoch` and `observe` on every batch of `data`; at last `end_task`. Then it evaluates
    with `predict`. A run may stop after any `observe` and continue in another process, so:

    - all that changes while training is listed by name in `saved` (modules, optimizers,
      generators, anything with `state_dict`, or plain values and tensors, which come back on the
      device of the run);
    - `phases` and `data` depend on the configuration and on saved state that does not change
      inside the phase, since they are called again on resuming;
    - random numbers come from `self.generator` alone.

    Attributes
    ----------
    model : nn.Module
        Every trained weight; `predict` uses this attribute, since evaluation may put averaged
        weights in its place.
    current : int
        Index of the task in training, −1 before the first.
    """

    name: ClassVar[str]
    scenarios: ClassVar[tuple[str, ...]] = ("task", "domain")
    # Whether `observe` passes its images through `augmented`.
    augments: ClassVar[bool] = False
    # Whether `predict` needs nothing but `model`, and every `observe` trains it, without starting
    # over: an average of its weights can then be evaluated too.
    averages: ClassVar[bool] = True
    Options: ClassVar[type[Any]] = NoOptions
    saved: ClassVar[tuple[str, ...]] = ("model", "optimizer", "generator", "current")

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.config = setup.config
        self.stream = setup.stream
        self.options = setup.config.options
        self.generator = seeds.generator(self.config.seed, "method")
        self.current = -1
        self.model = self.build_model().to(setup.device)
        self.optimizer = self.build_optimizer()
        # Row t: 0 for the outputs that task t uses, −inf elsewhere.
        self.masks = torch.full((len(self.stream.tasks), self.stream.outputs), -torch.inf)
        for task in self.stream.tasks:
            self.masks[task.index, task.outputs] = 0.0
        self.masks = self.masks.to(setup.device)

    # What a method may change ------------------------------------------------------------------

    def build_model(self) -> nn.Module:
        """Make the network with its initial weights."""
        return self.build_network()

    def build_optimizer(self) -> torch.optim.Optimizer:
        """Make the optimizer of `self.model`."""
        config = self.config
        return torch.optim.SGD(
            self.model.parameters(),
            lr=config.lr,
            momentum=config.momentum,
            weight_decay=config.weight_decay,
        )

    def phases(self, task: Task) -> Sequence[Phase]:
        """List the stretches of training of this task."""
        return [Phase("train", self.config.epochs, self.config.batch)]

    def data(self, task: Task, phase: Phase) -> tuple[Tensor, ...]:
        """Return the tensors that a phase runs over; `observe` gets matching rows of each."""
        return task.train()

    def begin_task(self, task: Task) -> None:
        """Prepare for a new task, before any of its phases."""

    def begin_phase(self, task: Task, phase: Phase) -> None:
        """Prepare for a phase."""

    def begin_epoch(self, task: Task, phase: Phase, epoch: int) -> None:
        """Set the learning rate of the epoch."""
        rate = self.config.lr if phase.lr is None else phase.lr
        milestones = self.config.milestones if phase.milestones is None else phase.milestones
        passed = sum(epoch >= milestone for milestone in milestones)
        self.set_rate(rate * self.config.lr_factor**passed)

    def observe(self, task: Task, *batch: Tensor) -> Step:
        """Train on one batch."""
        x, y = batch
        self.optimizer.zero_grad()
        loss = self.loss(self.model, self.augmented(x), y, self.mask(task))
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        return Step(loss.detach())

    def end_task(self, task: Task) -> None:
        """Finish a task, before it is evaluated."""

    def effort(self, task: Task) -> float:
        """Time of this task's steps in units of any other's, by which the time left is told."""
        return 1.0

    def ready(self) -> bool:
        """Whether there is something to evaluate after the current task."""
        return True

    def stored_samples(self) -> int:
        """Count the training samples of all tasks that are kept for later ones."""
        return 0

    def predict(self, x: Tensor, task: Task | None) -> Tensor:
        """Name the output of each sample; `task` is None where it is unknown at test time."""
        logits: Tensor = self.model(x)
        if task is None:
            return logits[:, : self.seen()].argmax(1)
        return logits[:, task.outputs].argmax(1) + int(task.outputs.start)

    @classmethod
    def control(cls, options: Mapping[str, Any]) -> tuple[str, dict[str, Any]] | None:
        """Name the method, with its options, that is this one without its constraints.

        Reports subtract its accuracy, seed by seed. None: there is no such method.
        """
        return None

    # What a method may use ---------------------------------------------------------------------

    def build_network(
        self, outputs: int | None = None, purpose: str = "weights", **options: Any
    ) -> nn.Module:
        """Make the configured network, with seeded weights; `options` win over the config's."""
        return make_network(self.config, self.stream, outputs, purpose, **options)

    def require_all_classes(self) -> None:
        """Raise if the images drawn for a task show none of one of its classes."""
        for task in self.stream.tasks:
            shown = len(set(task.training.labels.tolist()))
            if shown < len(task.classes):
                raise ConfigError(
                    f"samples={len(task.training)}: task {task.index} then shows {shown} of its "
                    f"{len(task.classes)} classes, and {self.config.method} needs an image of "
                    "each; use more"
                )

    def seen(self) -> int:
        """Count the outputs of all tasks up to the current one."""
        return int(max(task.outputs.stop for task in self.stream.tasks[: max(self.current, 0) + 1]))

    def mask(self, task: Task | int) -> Tensor:
        """Return what is added to the logits of a task: −inf for outputs that do not compete."""
        if self.stream.scenario == "class":
            return self.masks[: max(self.current, 0) + 1].amax(0)
        return self.masks[task if isinstance(task, int) else task.index]

    def mask_rows(self, tasks: Tensor) -> Tensor:
        """Return the mask of each sample, by the number of the task that it belongs to."""
        return self.mask(0) if self.stream.scenario == "class" else self.masks[tasks]

    @staticmethod
    def loss(model: nn.Module, x: Tensor, y: Tensor, mask: Tensor) -> Tensor:
        """Mean cross-entropy over the outputs that `mask` (one row, or one each) lets compete."""
        return functional.cross_entropy(model(x) + mask, y)

    def augmented(self, x: Tensor) -> Tensor:
        """Return the images with the random augmentation of the configuration."""
        augment = AUGMENTATIONS.get(self.config.augment)
        return x if augment is None else augment(x, self.generator)

    def set_rate(self, rate: float) -> None:
        """Set the learning rate of all parameters."""
        for group in self.optimizer.param_groups:
            group["lr"] = rate

    # State ---------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Collect all that is listed in `saved`."""
        return {name: _capture(getattr(self, name)) for name in self.saved}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Put back what `state_dict` returned."""
        for name in self.saved:
            value = getattr(self, name)
            if isinstance(value, torch.Generator):
                value.set_state(state[name])
            elif hasattr(value, "load_state_dict"):
                value.load_state_dict(state[name])
            else:
                setattr(self, name, _on(self.setup.device, state[name]))


def _on(device: torch.device, value: Any) -> Any:
    """Move the tensors of a plain value, which come from a file, to where the network is."""
    if isinstance(value, Tensor):
        return value.to(device)
    if isinstance(value, dict):
        return {key: _on(device, item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_on(device, item) for item in value)
    return value


def _capture(value: Any) -> Any:
    if isinstance(value, torch.Generator):
        return value.get_state()
    return value.state_dict() if hasattr(value, "state_dict") else value
