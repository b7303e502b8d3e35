"""A second, balanced phase of training, after the one on all data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from gradproj.experiments.common.schema import ranged
from gradproj.experiments.methods.setup import Phase

__all__ = ["Balanced", "FineTuning", "class_weights"]


@dataclass(frozen=True)
class FineTuning:
    """Epochs, learning rate and milestones of the phase."""

    epochs: int = ranged(10, low=0)
    lr: float = ranged(0.01, low=0.0)
    milestones: tuple[int, ...] = ()

    def phase(self, name: str, batch: int) -> Phase:
        """Return the phase, in batches of `batch`."""
        return Phase(name, self.epochs, batch, lr=self.lr, milestones=self.milestones)


@dataclass(frozen=True)
class Balanced:
    """Options of systems that end every task but the first with a balanced phase.

    Attributes
    ----------
    balance : FineTuning
        The balanced phase.
    later_epochs : int
        Epochs of the model's training before it. 0 takes those of the configuration, which the
        first task has in any case. GD has 180 after 200.
    later_milestones : tuple of int
        Milestones of these epochs, if their number is given.
    """

    balance: FineTuning = field(default_factory=FineTuning)
    later_epochs: int = ranged(0, low=0)
    later_milestones: tuple[int, ...] = ()

    def extended(self, phases: Sequence[Phase], batch: int) -> list[Phase]:
        """Add the balanced phase to phases that end with the training of the model."""
        *before, training = phases
        if self.later_epochs:
            training = replace(training, epochs=self.later_epochs, milestones=self.later_milestones)
        return [*before, training, self.balance.phase("balance", batch)]


def class_weights(labels: Tensor, classes: int) -> Tensor:
    """Weights under which all classes count the same: total / (count · classes) (GD).

    Examples
    --------
    >>> class_weights(torch.tensor([0, 1, 1, 1]), 2)
    tensor([2.0000, 0.6667])
    """
    counts = torch.bincount(labels, minlength=classes).clamp(min=1)
    return len(labels) / (counts.float() * classes)
