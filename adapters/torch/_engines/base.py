"""The interface of an engine, and the losses that it evaluates."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from gradproj.adapters.torch import _arguments
from gradproj.adapters.torch._rows import Task
from gradproj.adapters.torch._step import Step

# The arguments of a loss after the model: positional ones, or named ones in a dict.
Batch = Sequence[Any] | Mapping[str, Any]


class VectorizeError(RuntimeError):
    """torch.func cannot compute this loss for all old tasks at once."""


@dataclass(frozen=True)
class Evaluate:
    """How to get the loss of a task, and how the model behaves meanwhile.

    Attributes
    ----------
    model : Module
    loss : callable, optional
        ``loss(model, *batch)`` or ``loss(model, **batch)``. Without it a task is given by its loss
        itself, as a tensor or a function without arguments.
    running_statistics : bool
        Whether passes over old batches move the running statistics.
    retain_graph : bool
        Whether the graph of a loss stays after its backward call.
    """

    model: nn.Module
    loss: Callable[..., Tensor] | None = None
    running_statistics: bool = True
    retain_graph: bool = False

    def __call__(self, given: Any, task: Task) -> Tensor:
        """Return the loss of a task; raise if it cannot be run backward."""
        value: Tensor
        if self.loss is None:
            value = given() if callable(given) else given
            names = ("new_loss", f"old_losses[{task}]")
        else:
            value = call(self.loss, self.model, given)
            names = ("loss(model, *new)", f"loss(model, *old[{task}])")
        _arguments.loss(value, names[task is not None])
        return value


def call(loss: Callable[..., Tensor], model: nn.Module, batch: Batch) -> Tensor:
    """Call a loss with the arguments of a batch."""
    return loss(model, **batch) if isinstance(batch, Mapping) else loss(model, *batch)


class Engine(ABC):
    """A way to compute the gradients of a step."""

    name: str

    @abstractmethod
    def obstacle(self, model: nn.Module, old: Sequence[Batch]) -> str | None:
        """Return why the engine cannot be used, if it cannot."""

    @abstractmethod
    def worthwhile(self, model: nn.Module, old: Sequence[Batch] | None) -> bool:
        """Whether the engine is known to be faster than the loop."""

    @abstractmethod
    def run(self, step: Step, evaluate: Evaluate, new: Any, old: Iterable[Any]) -> Tensor:
        """Compute all gradients of a step; return the new task's loss, detached."""
