"""The loop engine: one backward call after the other."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any
from weakref import WeakKeyDictionary

from torch import Tensor, nn

from gradproj.adapters.torch._engines.base import Batch, Engine, Evaluate
from gradproj.adapters.torch._engines.factored import Factored
from gradproj.adapters.torch._rows import Rows, Task
from gradproj.adapters.torch._statistics import keep_running_statistics, refuse_tensors
from gradproj.adapters.torch._step import Step


class Loop(Engine):
    """Runs every loss backward on its own; works for every model and loss."""

    name = "loop"

    def __init__(self) -> None:
        # The recorder of a model is made again when its parameters change, as the rows are.
        self._recorders: WeakKeyDictionary[Rows, Factored] = WeakKeyDictionary()

    def obstacle(self, model: nn.Module, old: Sequence[Batch]) -> str | None:
        """Return None: there is never an obstacle."""
        del model, old
        return None

    def worthwhile(self, model: nn.Module, old: Sequence[Batch] | None) -> bool:
        """Return True: the loop is what other engines are compared with."""
        del model, old
        return True

    def run(self, step: Step, evaluate: Evaluate, new: Any, old: Iterable[Any]) -> Tensor:
        """Run all losses backward; the new one first if it is a tensor, last if it is called."""
        value, kept = None, nullcontext()
        if not evaluate.running_statistics:
            refuse_tensors(old)
            kept = keep_running_statistics(evaluate.model)  # type: ignore[assignment]
        watch = step.solver.processes.watch(evaluate.model)
        with self._factoring(step, evaluate.model), watch as check:

            def backward(given: Any, task: Task) -> Tensor:
                value = evaluate(given, task)
                # A loss that is not needed is called all the same, for what its pass itself does,
                # such as moving the statistics of batch norm.
                if task is None or step.needs(task):
                    check("new_loss" if task is None else f"old_losses[{task}]")
                    step.backward(task, value, retain_graph=evaluate.retain_graph)
                return value.detach()

            if isinstance(new, Tensor):
                value = backward(new, None)
            with kept:
                for task, given in enumerate(old):
                    backward(given, task)
            return backward(new, None) if value is None else value

    @contextmanager
    def _factoring(self, step: Step, model: nn.Module) -> Iterator[None]:
        """Keep the gradients of wide layers factored where that is possible.

        The number of old tasks must be known, to choose the layers. Averaged gradients and methods
        that need only one combination of the old gradients do not use pairs.
        """
        if not step.expected or step.reduction is not None or not step.solver.processes.alone:
            yield
            return
        if (factored := self._recorders.get(step.rows)) is None:
            factored = self._recorders[step.rows] = Factored(model)
        if not factored.promising(step.expected):
            yield
            return
        step.apart = factored
        with factored.step(step.expected):
            yield
