"""A second, balanced phase of training, after the one on all data."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gradproj.experiments.common.schema import ranged
from gradproj.experiments.methods.setup import Phase

__all__ = ["FineTuning", "class_weights"]


@dataclass(frozen=True)
class FineTuning:
    """Epochs, learning rate and milestones of the phase."""

    epochs: int = ranged(10, low=0)
    lr: float = ranged(0.01, low=0.0)
    milestones: tuple[int, ...] = ()

    def phase(self, name: str, batch: int) -> Phase:
        """Return the phase, in batches of `batch`."""
        return Phase(name, self.epochs, batch, lr=self.lr, milestones=self.milestones)


def class_weights(labels: Tensor, classes: int) -> Tensor:
    """Weights under which all classes count the same: total / (count · classes) (GD).

    Examples
    --------
    >>> class_weights(torch.tensor([0, 1, 1, 1]), 2)
    tensor([2.0000, 0.6667])
    """
    counts = torch.bincount(labels, minlength=classes).clamp(min=1)
    return len(labels) / (counts.float() * classes)
