"""One buffer of exemplars, split at random into parts that take the place of old tasks."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gradproj.experiments.methods.memory.exemplars import Exemplars, Features
from gradproj.experiments.streams import Task

__all__ = ["SubBuffers"]


class SubBuffers:
    """The random parts of a buffer, with the interface of `OldTasks`.

    Parameters
    ----------
    exemplars : Exemplars
    parts : int
        Number of parts.
    seed : int
        Seed of splits and samples.
    device : device, optional
        Device on which samples are returned.

    Examples
    --------
    >>> buffers = SubBuffers(Exemplars(total=7, policy="last"), parts=3)
    >>> buffers.admit(torch.arange(9.0), torch.zeros(9, dtype=torch.int64), classes=1)
    >>> [len(buffers.all(part)[0]) for part in range(len(buffers))]
    [3, 2, 2]
    """

    def __init__(
        self,
        exemplars: Exemplars,
        parts: int = 5,
        seed: int = 0,
        device: torch.device | None = None,
    ) -> None:
        self.exemplars, self.parts, self.device = exemplars, parts, device
        self.generator = torch.Generator().manual_seed(seed)
        self.order = torch.empty(0, dtype=torch.int64)

    def __len__(self) -> int:
        return min(self.parts, len(self.order))

    def count(self, task: int) -> int:  # noqa: ARG002 - the same in every task
        """Count the parts."""
        return len(self)

    def stored(self) -> int:
        """Count the exemplars."""
        return len(self.exemplars)

    def add(self, task: int, x: Tensor, y: Tensor) -> None:
        """Do nothing: exemplars are chosen at the end of a task."""

    def redraw(self) -> None:
        """Split the buffer again."""
        self.order = torch.randperm(len(self.order), generator=self.generator)

    def admit(self, x: Tensor, y: Tensor, classes: int, features: Features | None = None) -> None:
        """Choose exemplars of new classes, as `Exemplars.admit` does, and split again."""
        self.exemplars.admit(x, y, classes, features)
        self.order = torch.arange(len(self.exemplars))
        self.redraw()

    def end_task(self, task: Task, classes: int, features: Features) -> None:
        """Choose exemplars of the task's classes."""
        self.admit(*task.train(), classes, features)

    def all(self, part: int) -> tuple[Tensor, Tensor]:
        """Return the images and labels of a part."""
        return self._rows(self._part(part))

    def sample(self, part: int, n: int) -> tuple[Tensor, Tensor]:
        """Draw n samples of a part without replacement, or return all if it has fewer."""
        rows = self._part(part)
        if n < len(rows):
            rows = rows[torch.randperm(len(rows), generator=self.generator)[:n]]
        return self._rows(rows)

    def state_dict(self) -> dict[str, Any]:
        """Return exemplars, split and generator."""
        return {
            "exemplars": self.exemplars.state_dict(),
            "order": self.order,
            "generator": self.generator.get_state(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state that `state_dict` returned."""
        self.exemplars.load_state_dict(state["exemplars"])
        self.order = state["order"]
        self.generator.set_state(state["generator"])

    def _part(self, part: int) -> Tensor:
        return self.order.tensor_split(len(self))[part]

    def _rows(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        x, y = self.exemplars.all()
        return x[rows].to(self.device), y[rows].to(self.device)
