"""Pairs of inputs and output gradients of one step, and what is computed from them."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

import gradproj as gp
from gradproj.adapters.torch._engines.pair_algebra import (
    embedding_gram,
    form,
    linear_gram,
    measured,
    square,
)
from gradproj.adapters.torch._rows import Task

# Accuracy of the inner products and the largest error that is accepted for them, by the dtype of
# the gradients. The inner products are formed in float64, but the update of a float32 layer is
# summed in float32: its tolerance is the one of `gp.measure_layers`.
_TOLERANCE_64, _ACCEPTED_64 = 1e-13, 1e-9
_TOLERANCE_32, _ACCEPTED_32 = 5e-6, 1e-3


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
    tasks: int  # number of old tasks
    pairs: dict[Task, list[Pair]] = field(default_factory=dict)
    # Parts that reached `.grad`, because the parameter was also used outside of its module.
    rest: dict[Task, Tensor] = field(default_factory=dict)
    # All pairs as one, with the position of each row's task; or all gradients, (T + 1, size).
    joined: tuple[Tensor, Tensor, Tensor] | None = None
    formed: Tensor | None = None

    @property
    def used(self) -> bool:
        """Whether any backward pass had a gradient for the parameter."""
        found = (self.pairs, self.rest, self.joined is not None, self.formed is not None)
        return any(map(bool, found))

    def add_pair(self, task: Task, inputs: Tensor, outputs: Tensor) -> None:
        """Add the pair of one call to the gradient of a task."""
        pair = Pair(inputs, outputs, inputs._version)
        self.pairs.setdefault(task, []).append(pair)

    def add_rest(self, task: Task, grad: Tensor) -> None:
        """Add a part that reached `.grad` to the gradient of a task."""
        known = self.rest.get(task)
        self.rest[task] = grad if known is None else known + grad

    def products(self) -> gp.Products:
        """Compute the inner products of the gradients in float64."""
        T = self.tasks
        with torch.no_grad(), _full_precision(self.parameter):
            self._join()
            if self.formed is None:
                Q, tolerance = self._gram()
            if self.formed is not None:  # `_gram` may have done it
                return measured(self.formed)
            if self.rest:
                self._add_rest_products(Q)
        found = Q.cpu().numpy()
        return gp.Products(found[:T, :T], found[:T, T], found[T, T], np.asarray(tolerance))

    def combine(self, weights: Tensor, out: Tensor) -> None:
        """Write the weighted sum of the gradients to `out`; the new task's weight is the last."""
        with torch.no_grad(), _full_precision(out):
            self._join()
            if self.formed is not None:
                total = weights.to(self.formed) @ self.formed
                out.copy_(total.view(out.shape))
                return
            if self.joined is None:
                out.zero_()
            else:
                inputs, outputs, owner = self.joined
                # Very large coefficients, of very short gradients, do not fit into float32.
                large = bool(weights.abs().max() > 1e18)
                wide = torch.float64 if large else torch.float32
                dtype = torch.promote_types(out.dtype, wide)
                factors = weights.to(outputs.device, dtype)[owner]
                if not weights.all():  # GEM uses few of the old tasks, or none
                    used = factors != 0
                    inputs, outputs, factors = inputs[used], outputs[used], factors[used]
                form(inputs, outputs * factors[:, None], out, embedding=self.embedding)
            for task, rest in self.rest.items():
                out.add_(rest, alpha=float(weights[self._position(task)]))

    def _position(self, task: Task) -> int:
        return self.tasks if task is None else task

    def _join(self) -> None:
        """Concatenate the pairs of all tasks, or form the gradients if that is cheaper."""
        if self.joined is None and self.pairs:
            inputs, outputs, owner = [], [], []
            for task, pairs in self.pairs.items():
                for pair in pairs:
                    self._check_unchanged(pair)
                    inputs.append(pair.inputs)
                    outputs.append(pair.outputs)
                    owner += [self._position(task)] * len(pair.outputs)
            positions = torch.tensor(owner, dtype=torch.int64, device=outputs[0].device)
            self.joined = torch.cat(inputs), torch.cat(outputs), positions
            self.pairs = {}
        if len(self.rest) > 1:
            self._form_all()

    def _check_unchanged(self, pair: Pair) -> None:
        if pair.inputs._version != pair.version:
            raise RuntimeError(
                f"the input of a layer with weight of shape {tuple(self.parameter.shape)} was "
                "changed in place after its backward pass: change a copy instead"
            )

    def _gram(self) -> tuple[Tensor, float]:
        """Return the inner products (T + 1, T + 1) of the pairs and their accuracy.

        If float64 gradients cancel so far that their inner products would not be accurate enough,
        form them. In float32 only rounding is left of such gradients: they count as zero.
        """
        p, count = self.parameter, self.tasks + 1
        exact = p.dtype == torch.float64
        tolerance = _TOLERANCE_64 if exact else _TOLERANCE_32
        if self.joined is None:
            return torch.zeros((count, count), dtype=torch.float64), tolerance
        if self.embedding:
            return embedding_gram(*self.joined, count, len(p)), tolerance
        Q, error = linear_gram(*self.joined, count)
        # NaN is not lost: the caller reports it.
        lost = error > (_ACCEPTED_64 if exact else _ACCEPTED_32) * Q.diagonal()
        if bool(lost.any()):
            if exact:
                self._form_all()
            Q[lost], Q[:, lost], error[lost] = 0.0, 0.0, 0.0
        relative = (error / Q.diagonal()).nan_to_num(nan=0.0, posinf=0.0)
        return Q, max(tolerance, float(relative.max()))

    def _form_all(self) -> None:
        """Form the gradients of all tasks."""
        p = self.parameter
        dtype = torch.promote_types(p.dtype, torch.float32)
        self.formed = p.new_zeros((self.tasks + 1, p.numel()), dtype=dtype)
        rows = [row.view(p.shape) for row in self.formed]
        if self.joined is not None:
            inputs, outputs, owner = self.joined
            for position in set(owner.tolist()):
                mine = owner == position
                form(inputs[mine], outputs[mine], rows[position], embedding=self.embedding)
        for task, rest in self.rest.items():
            rows[self._position(task)] += rest
        self.joined, self.rest = None, {}

    def _add_rest_products(self, Q: Tensor) -> None:
        """Add the products of the one task that has a gradient beside its pairs."""
        ((task, rest),) = self.rest.items()
        k = self._position(task)
        if self.joined is not None:
            inputs, outputs, owner = self.joined
            wide = torch.promote_types(rest.dtype, torch.float32)
            rest = rest.to(wide)
            facing = rest[inputs] if self.embedding else inputs.to(wide) @ rest.T
            dots = (facing.double() * outputs.double()).sum(1)
            cross = dots.new_zeros(len(Q)).index_add_(0, owner, dots).to(Q.device)
            Q[k] += cross
            Q[:, k] += cross
        Q[k, k] += square(rest)


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
        self.records[parameter].add_pair(self.task, inputs, outputs)


def _full_precision(tensor: Tensor) -> AbstractContextManager[Any]:
    """Disable autocast, which would round the products to half precision."""
    return torch.autocast(tensor.device.type, enabled=False)
