"""`Rows`: the memory of a step. Gradients land in its rows because `.grad` is a view of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn

from gradproj.adapters.torch._arguments import Backend
from gradproj.adapters.torch._backends import choose_backend
from gradproj.adapters.torch._block_rows import BlockRows, Held, Parts, refuse_sparse, total
from gradproj.adapters.torch._layout import Layout
from gradproj.adapters.torch._marks import mark_updates, refuse_updates, was_update

Task = int | None  # None is the new task


class Rows:
    """One row per task, for each block of the layout.

    The new task has the first row, which stays where it is while the tasks grow. Row numbers are
    private to this module and `_block_rows`. Everywhere else a task is a number
    >= 0, or None for the new one.

    Gradients that need a wider dtype than their own land in a single row of their own dtype, and
    are converted when they are collected. These are float16 and bfloat16 gradients, which are
    measured in float32, and gradients that are added up, in float64.

    Attributes
    ----------
    apart : dict
        Parameters without columns, because an engine has another form for their gradients, and the
        numbers of their layers.
    updates : dict
        The updates of these parameters.
    """

    def __init__(self, layout: Layout, backend: Backend) -> None:
        self.layout = layout
        self.copied = 0
        self.apart: dict[nn.Parameter, int] = {}
        self.updates: dict[nn.Parameter, Tensor] = {}
        self.blocks = [BlockRows(b, choose_backend(backend, b.device)) for b in layout.blocks]
        self._attached: tuple[Task, list[list[int]]] | None = None

    @property
    def backend(self) -> str:
        """The library that measures the inner products."""
        return self.blocks[0].backend

    @property
    def device(self) -> torch.device:
        """Where the first block is."""
        return self.blocks[0].block.device

    @property
    def epsilon(self) -> float:
        """Rounding unit of the gradients."""
        exact = all(block.block.dtype == torch.float64 for block in self.blocks)
        return torch.finfo(torch.float64 if exact else torch.float32).eps

    # Memory --------------------------------------------------------------------------------------

    def allocate(self, tasks: int, *, summed: bool = False) -> None:
        """Make room for exactly this number of old tasks; keep nothing of what was there.

        With `summed` there is one old task, a float64 sum.
        """
        for block in self.blocks:
            if block.summed != summed or tasks + 1 > len(block.rows):
                block.allocate(tasks + 1, summed)

    def keep_apart(self, parameters: frozenset[nn.Parameter]) -> None:
        """Give columns to all parameters except these, and drop the gradients in the rows."""
        if parameters == self.apart.keys():
            return
        for block in self.blocks:
            block.disown()
        self.apart = {
            p: layer
            for block in self.layout.blocks
            for p, layer in zip(block.parameters, block.owners, strict=True)
            if p in parameters
        }
        blocks = self.layout.without(parameters)
        self.blocks = [
            BlockRows(block, known.backend)
            for block, known in zip(blocks, self.blocks, strict=True)
        ]
        self._attached = None

    def grow(self, task: Task) -> None:
        """Make room for a task beside those that are there; the capacity doubles."""
        row = _row(task)
        for block in self.blocks:
            if row >= len(block.rows):
                known = block.rows
                block.allocate(max(row + 1, 2 * len(known)), block.summed)
                block.rows[: len(known)] = known
                self._attached = None

    # Gradients come in ---------------------------------------------------------------------------

    def attach(self, task: Task) -> None:
        """Let every `.grad` be a view of the task's zeroed row."""
        self.grow(task)
        row = _row(task)
        for block in self.blocks:
            (block.rows[row] if block.landing is None else block.landing).zero_()
            for p, grad in zip(block.block.parameters, block.grads[row], strict=True):
                p.grad = grad
        self._attached = task, [block.versions(row) for block in self.blocks]

    def collect(self, task: Task, weight: float | None = None) -> list[bool]:
        """Bring `.grad` into the row of the task where it is not there already.

        With `weight`, the gradient is multiplied by it and added to what is in the row.

        Returns
        -------
        list of bool
            Which parameters have a gradient.
        """
        self.grow(task)
        before = self._attached[1] if self._attached and self._attached[0] == task else None
        touched: list[bool] = []
        for number, block in enumerate(self.blocks):
            flags, copied = block.collect(_row(task), before[number] if before else None)
            block.convert(_row(task), weight)
            touched += flags
            self.copied += copied
        self._attached = None
        return touched

    def clear(self) -> None:
        """Take `.grad` away from all parameters."""
        for p in self.layout.parameters:
            p.grad = None

    def zero(self, task: Task) -> None:
        """Set the row of a task to zero."""
        for block in self.blocks:
            block.rows[_row(task)].zero_()

    def write(self, gradients: Mapping[nn.Parameter, Tensor]) -> None:
        """Copy gradients (T, *shape) of all old tasks into their rows."""
        for block in self.blocks:
            self.copied += block.write(gradients)

    def add(
        self, gradients: Mapping[nn.Parameter, Tensor], weights: Sequence[float]
    ) -> list[Tensor]:
        """Add gradients (T, *shape), multiplied by their weights, to the row of old task 0.

        Returns
        -------
        list of tensors (T, segments)
            As `lengths`, of each gradient.
        """
        self.copied += len(weights) * sum(len(block.block.parameters) for block in self.blocks)
        return [block.add(gradients, weights) for block in self.blocks]

    def lengths(self, task: Task) -> list[Tensor]:
        """Return the lengths (1, segments) of a task's last gradient, block by block.

        They stay on the device, so that it is not waited for.
        """
        row = _row(task)
        return [b.lengths(b.rows[row] if b.landing is None else b.landing) for b in self.blocks]

    # Arithmetic ----------------------------------------------------------------------------------

    def parts(self, tasks: int) -> list[Parts]:
        """Return the layers of each block as arrays of the measuring library; nothing is copied."""
        return [block.parts(tasks) for block in self.blocks]

    def chosen(self, task: int) -> list[Parts]:
        """Return the parts of the new task and of one old task."""
        return [block.cut(block.array, slice(task + 1, task + 2)) for block in self.blocks]

    def summed(self, weights: Sequence[float]) -> tuple[list[Parts], list[list[Tensor]]]:
        """Return the parts of the new task and of a weighted sum of the old ones, in float64.

        Returns
        -------
        parts : list of Parts
            Copies of the rows; `narrow` brings the first one back.
        lengths : list of lists of tensors
            As `lengths`, of each term of the sum.
        """
        parts = [block.summed_parts(weights) for block in self.blocks]
        used = [task for task, weight in enumerate(weights) if weight]
        return parts, [[b.lengths(b.rows[task + 1]) for b in self.blocks] for task in used]

    def narrow(self, parts: Sequence[Parts]) -> None:
        """Bring an update that was combined in a copy into the row of the new task."""
        for block, part in zip(self.blocks, parts, strict=True):
            if part.wide is not None:
                block.rows[0].copy_(part.wide[0])

    def used(self, tasks: int, known: Sequence[bool]) -> list[bool]:
        """Return which parameters have a gradient that is not zero, or are `known` to have one."""
        flags = iter(known)
        return [
            next(flags) or bool(block.rows[1 : tasks + 1, slot.columns].any())
            for block in self.blocks
            for slot in block.block.slots
        ]

    def leading(self, tasks: int) -> list[Tensor]:
        """Return the rows of the new and the old tasks, one tensor (T + 1, N) per block."""
        return [block.rows[: tasks + 1] for block in self.blocks]

    def fits(self) -> bool:
        """Whether the update can be rounded to the parameters' own dtype."""
        return all(
            float(torch.linalg.vector_norm(block.rows[0], torch.inf))
            <= torch.finfo(block.landing.dtype).max
            for block in self.blocks
            if block.landing is not None and block.block.width
        )

    def poison(self, used: Callable[[nn.Parameter], bool] | None = None) -> None:
        """Fill the update with NaN, on which GradScaler skips the step.

        `used` says which of the parameters without columns have a gradient.
        """
        for block in self.blocks:
            block.rows[0].fill_(torch.nan)
        self.updates = {
            p: torch.full_like(p, torch.nan, requires_grad=False)
            for p in self.apart
            if used is None or used(p)
        }

    # `.grad` before and after a step -------------------------------------------------------------

    def put_aside(self) -> Held:
        """Take every `.grad` away and return it, so that the step can add its update to it.

        Where `.grad` is a view of a row, its contents move to a place of their own.
        """
        held: Held = {}
        zeroed = self._attached[1] if self._attached and self._attached[0] is None else None
        for number, block in enumerate(self.blocks):
            held |= block.put_aside(zeroed[number] if zeroed else None)
        for p in self.apart:
            if p.grad is not None:
                refuse_sparse(p, p.grad)
                held[p], p.grad = p.grad, None
        self._attached = None
        return held

    def restore(self, held: Held) -> None:
        """Let every `.grad` be what `put_aside` returned."""
        self._attached = None
        for p in self.layout.parameters:
            p.grad = held.get(p)

    def hand_over(self, touched: Sequence[bool], held: Held | None = None) -> None:
        """Add the update to what `.grad` was; None stays None for a parameter without gradients."""
        flags, held = iter(touched), held or {}
        self._attached = None
        for block in self.blocks:
            if block.landing is not None:
                block.landing.copy_(block.rows[0])
            for k, (p, grad) in enumerate(zip(block.block.parameters, block.grads[0], strict=True)):
                p.grad = block.total(k, grad if next(flags) else None, held.get(p))
        for p in self.apart:
            p.grad = total(self.updates.pop(p, None), held.get(p))
        mark_updates(self.layout.parameters)

    def release(self, kept: Sequence[nn.Parameter]) -> None:
        """Take the views out of all `.grad`: copies for the `kept` parameters, None for the others.

        With a view left in it, an optimizer would continue to move a frozen parameter.
        """
        staying = {id(p) for p in kept}
        for block in self.blocks:
            for k, p in enumerate(block.block.parameters):
                if p.grad is not None and block.owns(k, p.grad):
                    p.grad = p.grad.clone() if id(p) in staying else None
        for p in self.apart:
            if id(p) not in staying and was_update(p.grad):
                p.grad = None

    def refuse_updates(self) -> None:
        """Raise if `.grad` is still the update of an earlier step, of any projector."""
        refuse_updates(self.layout.parameters)


def _row(task: Task) -> int:
    return 0 if task is None else task + 1
