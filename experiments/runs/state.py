"""The state of a run: all that a checkpoint holds besides the configuration and the log."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from gradproj.experiments.common import seeds
from gradproj.experiments.common.errors import ConfigError
from gradproj.experiments.methods.config import RunConfig
from gradproj.experiments.methods.learner import Learner
from gradproj.experiments.runs.record import Record

__all__ = ["Losses", "Position", "TrainingState"]


@dataclass
class Position:
    """Where in the stream the run is; between epochs, `order` equals None."""

    task: int = 0
    phase: int = 0
    epoch: int = 0
    step: int = 0
    total: int = 0
    order: Tensor | None = None


@dataclass
class Losses:
    """The loss of the last step (None before the first), and the sum over the current task."""

    last: Tensor | float | None = None
    total: Tensor | float = 0.0
    steps: int = 0

    def add(self, loss: Tensor | float) -> None:
        """Count the loss of a step."""
        self.last = loss
        self.total = self.total + loss
        self.steps += 1

    def end_task(self) -> float | None:
        """Return the mean over the task, or None without steps; the next task starts at zero."""
        mean = float(self.total) / self.steps if self.steps else None
        self.total, self.steps = 0.0, 0
        return mean


@dataclass
class TrainingState:
    """A learner and its averaged weights, the order of samples, the position and the record."""

    learner: Learner
    average: AveragedModel | None
    order: torch.Generator
    position: Position = field(default_factory=Position)
    record: Record = field(default_factory=Record)
    losses: Losses = field(default_factory=Losses)

    @classmethod
    def fresh(cls, learner: Learner, config: RunConfig) -> TrainingState:
        """Return the state before the first step."""
        _check_saved(learner)
        return cls(learner, _averaged(learner, config.ema), seeds.generator(config.seed, "order"))

    def to_dict(self) -> dict[str, Any]:
        """Return the state as tensors and plain values, the global generators included."""
        losses = self.losses
        return {
            "learner": self.learner.state_dict(),
            "average": None if self.average is None else self.average.state_dict(),
            "position": dict(vars(self.position)),
            "record": asdict(self.record),
            "order": self.order.get_state(),
            "rng": seeds.global_state(),
            "loss": None if losses.last is None else float(losses.last),
            "task_losses": (float(losses.total), losses.steps),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Go back to what `to_dict` returned."""
        self.learner.load_state_dict(state["learner"])
        if self.average is not None:
            self.average.load_state_dict(state["average"])
        self.position = Position(**state["position"])
        self.record = Record(**state["record"])
        self.order.set_state(state["order"])
        seeds.restore_global_state(state["rng"])
        # Checkpoints of earlier versions lack the losses of the task.
        self.losses = Losses(state["loss"], *state.get("task_losses", (0.0, 0)))


def _check_saved(learner: Learner) -> None:
    for name in learner.saved:
        if not hasattr(learner, name):
            raise ConfigError(
                f"saved: method '{learner.config.method}' lists {name!r} and has no such "
                "attribute; set it in __init__, or take it off the list"
            )


def _averaged(learner: Learner, decay: float) -> AveragedModel | None:
    if decay == 0.0:
        return None
    average = get_ema_multi_avg_fn(decay)  # type: ignore[no-untyped-call]
    return AveragedModel(learner.model, multi_avg_fn=average)
