"""The memory of a projection: one part per old task, or random parts of one buffer."""

from __future__ import annotations

from typing import Any, Protocol

from torch import Tensor

from gradproj.adapters.torch import EpisodicMemory
from gradproj.experiments.methods.memory.exemplars import Features
from gradproj.experiments.streams import Task

__all__ = ["OldTasks", "TaskMemories"]


class OldTasks(Protocol):
    """The samples of old tasks, by their index."""

    def count(self, task: int) -> int:
        """Count the old tasks during training on the task with index `task`."""

    def stored(self) -> int:
        """Count the samples."""

    def sample(self, task: int, n: int) -> tuple[Tensor, ...]:
        """Draw n samples of an old task."""

    def all(self, task: int) -> tuple[Tensor, ...]:
        """Return all samples of an old task."""

    def redraw(self) -> None:
        """Split the samples again, if they are split at random."""

    def add(self, task: int, x: Tensor, y: Tensor) -> None:
        """Receive a batch that was trained on."""

    def end_task(self, task: Task, classes: int, features: Features) -> None:
        """Receive a whole task at its end; there are now `classes` classes in total."""

    def state_dict(self) -> dict[str, Any]:
        """Return everything as tensors and plain values."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state that `state_dict` returned."""


class TaskMemories(EpisodicMemory):
    """One memory per task, filled batch by batch.

    Examples
    --------
    >>> import torch
    >>> memory = TaskMemories(2, "last")
    >>> memory.add(0, torch.arange(3.0), torch.zeros(3))
    >>> memory.count(1), memory.stored(), memory.all(0)[0].tolist()
    (1, 2, [2.0, 1.0])
    """

    def count(self, task: int) -> int:
        """Count the tasks before this one."""
        return task

    def stored(self) -> int:
        """Count the samples of all tasks."""
        return len(self)

    def redraw(self) -> None:
        """Do nothing: there is no random split."""

    def end_task(self, task: Task, classes: int, features: Features) -> None:
        """Do nothing: the batches were added before."""
