"""The loop engine: one backward call after the other."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from typing import Any

from torch import Tensor, nn

from gradproj.adapters.torch._engines.base import Batch, Engine, Evaluate
from gradproj.adapters.torch._rows import Task
from gradproj.adapters.torch._statistics import keep_running_statistics, refuse_tensors
from gradproj.adapters.torch._step import Step


class Loop(Engine):
    """Runs every loss backward on its own; works for every model and loss."""

    name = "loop"

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
        with step.solver.processes.watch(evaluate.model) as check:

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
