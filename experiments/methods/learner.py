"""The interface between methods and the runner: training, prediction and saved state."""

# ruff: noqa: ARG002, ARG003 - hooks have the arguments that some method needs

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
    """The base class of all methods. On its own it is plain fine-tuning.

    A method is one file in `gradproj.experiments.methods` with one public subclass. The runner
    calls, for each task: `begin_task`; for each of `phases`: `begin_phase`, then for each epoch
    `begin_epoch` and `observe` on every batch of `data`; finally `end_task`. Then it evaluates
    with `predict`. A run may stop after any `observe` and resume in another process. Therefore:

    - `saved` lists the names of all attributes that training changes: modules, optimizers,
      generators, objects with `state_dict`, plain values, and tensors, which are restored on the
      device of the run.
    - `phases` and `data` depend only on the configuration and on saved state that does not change
      during the phase, because they are called again when a run resumes.
    - All random numbers come from `self.generator`.

    Attributes
    ----------
    model : nn.Module
        All trained weights. `predict` must use this attribute, because evaluation may replace it by
        averaged weights.
    current : int
        Index of the current task, −1 before the first.
    """

    name: ClassVar[str]
    scenarios: ClassVar[tuple[str, ...]] = ("task", "domain")
    # Whether `observe` passes its images through `augmented`.
    augments: ClassVar[bool] = False
    # Whether an average of the weights can be evaluated: `predict` needs only `model`, every
    # `observe` trains it, and it is never re-initialized.
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

    # To override in methods ------------------------------------------------------------------

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
        """List the phases of training on this task."""
        return [Phase("train", self.config.epochs, self.config.batch)]

    def data(self, task: Task, phase: Phase) -> tuple[Tensor, ...]:
        """Return the tensors of a phase, from which `observe` gets matching rows."""
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
        return self.descend(self.loss(self.model, self.augmented(x), y, self.mask(task)))

    def adjust_gradients(self) -> None:
        """Change the gradients of a step, in `.grad`, before the optimizer uses them."""

    def end_task(self, task: Task) -> None:
        """Finish a task, before it is evaluated."""

    def effort(self, task: Task) -> float:
        """Relative cost of a step on this task, used to estimate the remaining time."""
        return 1.0

    def ready(self) -> bool:
        """Whether there is something to evaluate after the current task."""
        return True

    def stored_samples(self) -> int:
        """Count the training samples of all tasks that are kept for later ones."""
        return 0

    def predict(self, x: Tensor, task: Task | None) -> Tensor:
        """Return the output of each sample. Without a `task`, it is unknown at test time."""
        logits: Tensor = self.model(x)
        if task is None:
            return logits[:, : self.seen()].argmax(1)
        return logits[:, task.outputs].argmax(1) + int(task.outputs.start)

    @classmethod
    def control(cls, options: Mapping[str, Any]) -> tuple[str, dict[str, Any]] | None:
        """Return the method, with its options, that is this one without its constraints.

        Reports subtract its accuracy, seed by seed. None means that there is no such method.
        `options` may come from a stored run of an older version and lack newer keys.
        """
        return None

    # For use in methods ---------------------------------------------------------------------

    def build_network(
        self, outputs: int | None = None, purpose: str = "weights", **options: Any
    ) -> nn.Module:
        """Make the configured network with seeded weights. `options` override the configuration."""
        return make_network(self.config, self.stream, outputs, purpose, **options)

    def require_all_classes(self) -> None:
        """Raise if the training images of a task lack one of its classes."""
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
        """Return the mask to add to the logits of a task: −inf for outputs that do not compete."""
        if self.stream.scenario == "class":
            return self.masks[: max(self.current, 0) + 1].amax(0)
        return self.masks[task if isinstance(task, int) else task.index]

    def mask_rows(self, tasks: Tensor) -> Tensor:
        """Return one mask per sample, by the index of its task."""
        return self.mask(0) if self.stream.scenario == "class" else self.masks[tasks]

    @staticmethod
    def loss(model: nn.Module, x: Tensor, y: Tensor, mask: Tensor) -> Tensor:
        """Return the mean cross-entropy with a mask for the batch, or one per sample."""
        return functional.cross_entropy(model(x) + mask, y)

    def descend(self, loss: Tensor, optimizer: torch.optim.Optimizer | None = None) -> Step:
        """Make one step of `self.optimizer`, or of another one."""
        optimizer = self.optimizer if optimizer is None else optimizer
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self.adjust_gradients()
        optimizer.step()
        return Step(loss.detach())

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
        """Return the attributes listed in `saved`."""
        return {name: _capture(getattr(self, name)) for name in self.saved}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state that `state_dict` returned."""
        for name in self.saved:
            value = getattr(self, name)
            if isinstance(value, torch.Generator):
                value.set_state(state[name])
            elif hasattr(value, "load_state_dict"):
                value.load_state_dict(state[name])
            else:
                setattr(self, name, _on(self.setup.device, state[name]))


def _on(device: torch.device, value: Any) -> Any:
    """Move the tensors in a plain value to a device."""
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
