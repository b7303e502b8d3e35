"""Pairs of inputs and output gradients, as the layers record them during backward passes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor, nn

from gradproj.adapters.torch._rows import Task


class Pair(NamedTuple):
    """Inputs and output gradients of one call of a layer, one row per sample."""

    inputs: Tensor  # (rows, in), or the indices (rows,) of an embedding
    outputs: Tensor  # (rows, out)
    version: int  # of the inputs, to notice changes in place


@dataclass
class Record:
    """Gradients of one parameter in one step."""

    parameter: nn.Parameter
    embedding: bool
    pairs: dict[Task, list[Pair]] = field(default_factory=dict)
    # Parts that reached `.grad`, because the parameter was also used outside of its module.
    rest: dict[Task, Tensor] = field(default_factory=dict)
    # All pairs as one, with the position of each row's task; or all gradients, (T + 1, size).
    joined: tuple[Tensor, Tensor, Tensor] | None = None
    formed: Tensor | None = None


def check_unchanged(pair: Pair, parameter: nn.Parameter) -> None:
    if pair.inputs._version != pair.version:
        raise RuntimeError(
            f"the input of a layer with weight of shape {tuple(parameter.shape)} was changed in "
            "place after its backward pass: change a copy instead"
        )


class Tape:
    """The pairs of one step, and the task whose backward pass adds to them.

    Attributes
    ----------
    records : dict
        One record per parameter whose gradients are kept as pairs.
    task : int or None
        The task of the present backward pass.
    open : bool
        Whether a backward pass is being recorded.
    """

    def __init__(self) -> None:
        self.records: dict[nn.Parameter, Record] = {}
        self.task: Task = None
        self.open = False

    def wants(self, parameter: nn.Parameter) -> bool:
        """Return whether pairs of the parameter are recorded now instead of its gradient."""
        # With create_graph, the gradient is an intermediate result of a loss.
        return self.open and parameter in self.records and not torch.is_grad_enabled()

    def record(self, parameter: nn.Parameter, inputs: Tensor, outputs: Tensor) -> None:
        """Add the pair of one call to the gradient of the present task."""
        pair = Pair(inputs, outputs, inputs._version)
        self.records[parameter].pairs.setdefault(self.task, []).append(pair)
