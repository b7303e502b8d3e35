"""Gradients of wide linear and embedding layers, kept as pairs of inputs and output gradients.

The gradient of a linear layer over one batch is DᵀA, with one row per sample (or token) in the
inputs A and in the output gradients D. For a wide layer and small batches the pair (A, D) is much
smaller than the gradient, and everything that a method needs can be computed from pairs:

- The inner product of the gradients of tasks i and j is the sum of the entries of
  (Aᵢ Aⱼᵀ) ∘ (Dᵢ Dⱼᵀ), where ∘ is the elementwise product.
- The update s·g + Σ cᵢ gᵢ is one product (r·D)ᵀA over the rows of all tasks. The weight r of a row
  is the coefficient of its task.

An embedding layer is the same with one-hot inputs, so A is stored as a vector of indices.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import gradproj as gp
from gradproj.adapters.torch._engines import pair_cost
from gradproj.adapters.torch._engines.pair_layers import Call, supported
from gradproj.adapters.torch._engines.pairs import Record, Tape
from gradproj.adapters.torch._rows import Task

# Steps without an attempt after one in which no layer was worthwhile. An attempt costs 0.5 ms in a
# small network, where a step takes 12 ms.
_PAUSE = 15


class Factored:
    """Records pairs in place of the weight gradients of one model, for one step at a time.

    It replaces `forward` of modules whose type is exactly `nn.Linear` or `nn.Embedding` while a
    step runs. All other gradients, those of biases included, reach `.grad` as usual.

    A parameter stays in its usual form if it has hooks, if it is sharded or replicated by a wrapper
    from `torch.distributed`, or if its module is compiled, has a `forward` of its own, or is an
    embedding with `sparse`, `max_norm` or `scale_grad_by_freq`.

    Parameters
    ----------
    model : Module
        Make a new object when modules or parameters of the model are replaced.

    Examples
    --------
    >>> model = nn.Linear(2000, 1000, bias=False)
    >>> batches = [torch.randn(4, 2000) for _ in range(3)]
    >>> factored = Factored(model)
    >>> with factored.step(tasks=2):
    ...     for task, batch in zip((0, 1, None), batches):
    ...         loss = model(batch).square().mean()
    ...         chosen = factored.choose()
    ...         with factored.recording(task):
    ...             loss.backward()
    >>> chosen == {model.weight}, model.weight.grad
    (True, None)
    >>> solution = gp.Decomposed().solve(factored.products(model.weight))
    >>> update = factored.combine(model.weight, solution.coefficients, solution.scale)
    >>> update.shape
    torch.Size([1000, 2000])
    >>> factored.clear()
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self._calls: list[Call] | None = None
        # Parameters with several uses outside of their modules: pairs do not save anything there.
        self._shared: set[nn.Parameter] = set()
        self._rows: dict[nn.Parameter, int] = {}
        self._tasks = 0
        self._tape = Tape()
        self._installed: list[Call] = []
        self._decided = False
        self._pause = 0

    def __reduce__(self) -> tuple[Any, ...]:
        return Factored, (self.model,)  # a copy belongs to a copy of the model

    def promising(self, tasks: int) -> bool:
        """Return whether to attempt a step with this number of old tasks.

        After a step in which no layer was worthwhile, several steps are not attempted.
        """
        if self._pause and tasks == self._tasks:
            self._pause -= 1
            return False
        return tasks > 0

    @contextmanager
    def step(self, tasks: int) -> Iterator[None]:
        """Replace `forward` of the supported modules while the passes of one step run.

        Parameters
        ----------
        tasks : int
            Number of old tasks.
        """
        self.clear()
        self._tasks, self._decided = tasks, False
        try:
            for call in self._candidates():
                call.install()
                self._installed.append(call)
            yield
        except BaseException:
            self.clear()
            raise
        finally:
            self._restore(set())

    def choose(self) -> frozenset[nn.Parameter]:
        """Choose the parameters whose gradients stay factored in this step.

        Call it after the first forward pass and before the first backward pass. The forward pass
        tells how many rows the batches have; other batches are expected to be similar. If the
        first loss was computed before the step began, the row counts of the last step are used.
        Later calls in the same step return the same parameters.
        """
        if not self._decided:
            self._decided = True
            self._count()
            for call in self._installed:
                p = call.parameter
                rows = self._rows.get(p, 0) * (self._tasks + 1)
                if rows and pair_cost.worthwhile(p, rows, self._tasks, embedding=call.embedding):
                    self._tape.records.setdefault(p, Record(p, call.embedding, self._tasks))
            unknown = self._installed and not self._rows
            self._pause = 0 if self._tape.records or unknown else _PAUSE
        return frozenset(self._tape.records)

    @contextmanager
    def recording(self, task: Task) -> Iterator[None]:
        """Record the pairs of one backward pass as the gradient of `task`; None is the new task.

        The chosen parameters have no `.grad` before and after the pass.
        """
        self.choose()
        counted = self._count()
        for p in self._tape.records:
            p.grad = None
        self._tape.task, self._tape.open = task, True
        try:
            yield
        finally:
            self._tape.open = False
        for call in self._installed:
            call.rows = 0
        for record in self._tape.records.values():
            found, record.parameter.grad = record.parameter.grad, None
            if found is not None:
                record.add_rest(task, found.detach())
            if len(record.rest) > 1:
                self._shared.add(record.parameter)
        # Only now: a checkpointed forward pass is repeated during backward, and must be the same.
        if counted:
            self._restore(set(self._tape.records))

    def used(self, parameter: nn.Parameter) -> bool:
        """Return whether any backward pass of the step had a gradient for a chosen parameter."""
        return self._tape.records[parameter].used

    def products(self, parameter: nn.Parameter) -> gp.Products:
        """Compute the inner products of a chosen parameter's gradients in float64.

        The products of a layer are the sum over its parameters, factored or not.
        """
        return self._tape.records[parameter].products()

    def combine(
        self,
        parameter: nn.Parameter,
        coefficients: Sequence[float] | np.ndarray[Any, Any],
        scale: float | np.ndarray[Any, Any] = 1.0,
        *,
        out: Tensor | None = None,
    ) -> Tensor:
        """Return the update s·g + Σ cᵢ gᵢ of a chosen parameter, in its shape and dtype.

        Parameters
        ----------
        parameter : Parameter
            One of the chosen parameters.
        coefficients : array (T,)
            One coefficient per old task.
        scale : float
            Coefficient of the new gradient.
        out : Tensor, optional
            Dense tensor of the parameter's shape and dtype that receives the update.
        """
        if out is None:
            out = torch.empty_like(parameter, requires_grad=False)
        weights = torch.tensor([*coefficients, float(scale)], dtype=torch.float64)
        self._tape.records[parameter].combine(weights, out)
        return out

    def gradient(self, parameter: nn.Parameter, task: Task) -> Tensor:
        """Form the gradient of one task for a chosen parameter, in its shape and dtype."""
        coefficients = np.zeros(self._tasks)
        if task is not None:
            coefficients[task] = 1.0
        return self.combine(parameter, coefficients, float(task is None))

    def clear(self) -> None:
        """Drop all pairs, at the end of a step."""
        self._tape.records = {}

    def _count(self) -> bool:
        """Note how many rows the last forward pass had; return whether rows are known."""
        counts: dict[nn.Parameter, int] = {}
        for call in self._installed:
            counts[call.parameter] = counts.get(call.parameter, 0) + call.rows
        counts = {p: rows for p, rows in counts.items() if rows}
        self._rows.update(counts)
        return bool(counts)

    def _candidates(self) -> list[Call]:
        """Return the calls of all parameters that may be factored in this step."""
        count = self._tasks + 1
        kinds: dict[nn.Parameter, bool] = {}
        refused = set(self._shared)
        if self._calls is None:
            self._calls = [Call(self._tape, module) for module in supported(self.model)]
        for call in self._calls:
            # A weight that is tied between a linear and an embedding layer has two kinds of pairs.
            if kinds.setdefault(call.parameter, call.embedding) != call.embedding:
                refused.add(call.parameter)
        return [
            call
            for call in self._calls
            if call.parameter not in refused
            and call.available()
            # One row per task is the least that there can be.
            and pair_cost.worthwhile(call.parameter, count, self._tasks, embedding=call.embedding)
        ]

    def _restore(self, kept: set[nn.Parameter]) -> None:
        """Restore `forward` of all modules except those of the parameters in `kept`."""
        for call in self._installed:
            if call.parameter not in kept:
                call.remove()
        self._installed = [call for call in self._installed if call.parameter in kept]
