"""`BlockRows`: the rows of one block of parameters, and their views as `.grad`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from gradproj.adapters.torch import _shards
from gradproj.adapters.torch._backends import as_array
from gradproj.adapters.torch._layout import Block

_HALF = (torch.float16, torch.bfloat16)
# float32 squares outside this range are too close to overflow or to the subnormal numbers.
_SAFE = 1e-24, 1e36

Held = dict[nn.Parameter, Tensor]


class Parts(NamedTuple):
    """The rows of a block, cut into its layers."""

    new: list[Any]  # (N_l,), arrays of the measuring library
    old: list[Any]  # (T, N_l)
    wide: Tensor | None = None  # the memory of both, if it is not the rows themselves


class BlockRows:
    """The rows of one block."""

    def __init__(self, block: Block, backend: str) -> None:
        self.block = block
        self.backend = backend
        self.summed = False
        self.landing: Tensor | None = None
        self.rows = torch.empty((0, block.width), device=block.device)
        self.views: list[list[Tensor]] = []
        self.grads: list[list[Tensor]] = []
        # `.grad` of earlier steps that the next update is added to; made when it is needed.
        self.carried: list[Tensor] = []
        self.array: Any = None
        self._parts: tuple[int, Parts] | None = None

    def allocate(self, count: int, summed: bool) -> None:
        """Take this number of new rows of zeros in place of those that were there."""
        block, self.summed = self.block, summed
        self.disown()
        self.array, self._parts, self.views, self.grads = None, None, [], []
        work = torch.float32 if block.dtype in _HALF else block.dtype
        if summed:
            work = _widest(block.device)
        self.rows = self.rows[:0]
        with torch.inference_mode(False):  # or they could not be written to in any other mode
            self.rows = torch.zeros((count, block.width), dtype=work, device=block.device)
            if work == block.dtype and not summed:
                self.landing = None
            elif self.landing is None:
                self.landing = torch.zeros(block.width, dtype=block.dtype, device=block.device)
        self.array = as_array(self.rows, self.backend)
        if self.landing is not None:
            self.views = [self._views(self.landing)] * count
            self.grads = [self._like(self.views[0])] * count
        else:
            self.views = [self._views(row) for row in self.rows]
            self.grads = [self._like(views) for views in self.views]

    def _views(self, row: Tensor) -> list[Tensor]:
        # `.data` gives each view its own version counter, which tells whether autograd wrote to it.
        return [
            row[slot.columns].as_strided(slot.shape, slot.strides).data
            if slot.shape.numel()
            else row.new_zeros(slot.shape)
            for slot in self.block.slots
        ]

    def _like(self, views: Sequence[Tensor]) -> list[Tensor]:
        return [_shards.like(p, v) for p, v in zip(self.block.parameters, views, strict=True)]

    def owns(self, k: int, grad: Tensor) -> bool:
        """Whether a gradient of parameter number k is a view of a row."""
        return any(grad is grads[k] for grads in self.grads)

    def disown(self) -> None:
        """Copy each `.grad` that is a view of a row, because it would keep all rows alive."""
        for k, p in enumerate(self.block.parameters):
            if p.grad is not None and self.owns(k, p.grad):
                p.grad = p.grad.clone()

    def versions(self, row: int) -> list[int]:
        """Return the write counts of a row's views; they change when autograd accumulates."""
        return [view._version for view in self.views[row]]

    def collect(self, row: int, before: Sequence[int] | None) -> tuple[list[bool], int]:
        """Bring `.grad` into the row; return which parameters have one, and how many were copied.

        `before` are the write counts of the row since it was attached.
        """
        touched, copied = [], 0
        for k, (p, grad, view) in enumerate(
            zip(self.block.parameters, self.grads[row], self.views[row], strict=True)
        ):
            found = p.grad
            if found is grad:
                touched.append(before is None or view._version != before[k])
            elif found is None:
                view.zero_()
                touched.append(False)
            else:
                refuse_sparse(p, found)
                # Detached: after backward(create_graph=True) the buffer would keep the graph.
                view.copy_(_shards.local(found.detach()))
                touched.append(True)
                copied += 1
        return touched, copied

    def convert(self, row: int, weight: float | None) -> None:
        """Bring the gradient that has landed into its row, in the row's dtype."""
        if self.landing is None:
            return
        if weight is None:
            self.rows[row].copy_(self.landing)
        else:
            self.rows[row].add_(self.landing, alpha=weight)

    def write(self, gradients: Mapping[nn.Parameter, Tensor]) -> int:
        """Copy gradients (T, *shape) of all old tasks into their rows; return how many."""
        copied = 0
        for p, slot in zip(self.block.parameters, self.block.slots, strict=True):
            stacked = gradients[p]
            rows = self.rows[1 : len(stacked) + 1, slot.columns]
            rows.as_strided(stacked.shape, (rows.stride(0), *slot.strides)).copy_(stacked)
            copied += len(stacked)
        return copied

    def add(self, gradients: Mapping[nn.Parameter, Tensor], weights: Sequence[float]) -> Tensor:
        """Add weighted gradients (T, *shape) to the row of old task 0.

        Returns
        -------
        Tensor (T, segments)
            The length of each segment of each gradient.
        """
        row = self.rows[1]
        factors = row.new_tensor(weights)
        lengths = row.new_zeros((len(weights), len(self.block.segments)))
        ends = [segment.columns.stop for segment in self.block.segments]
        segment = 0
        for p, slot in zip(self.block.parameters, self.block.slots, strict=True):
            each = gradients[p].flatten(1).to(row.dtype)
            total = (factors @ each).view(slot.shape)
            row[slot.columns].as_strided(slot.shape, slot.strides).add_(total)
            while slot.columns.stop > ends[segment]:
                segment += 1
            norms = torch.linalg.vector_norm(each, dim=1)
            lengths[:, segment] = torch.hypot(lengths[:, segment], norms)
        return lengths

    def lengths(self, row: Tensor) -> Tensor:
        """Return the length of each segment of a row, (1, segments)."""
        cuts = [row[segment.columns] for segment in self.block.segments]
        if row.device.type == "cpu" and row.dtype == torch.float32:
            # Four times as fast as in float64, unless a square does not fit.
            squares = [float(torch.dot(cut, cut)) for cut in cuts]
            if all(_SAFE[0] < square < _SAFE[1] for square in squares):
                return torch.tensor([squares], dtype=torch.float64, device="cpu").sqrt_()
        return torch.stack(torch._foreach_norm(cuts, 2, _widest(row.device)))[None]

    def parts(self, tasks: int) -> Parts:
        """Return the layers of the first rows; the views are made once per number of tasks."""
        if self._parts is None or self._parts[0] != tasks:
            self._parts = tasks, self.cut(self.array, slice(1, tasks + 1))
        return self._parts[1]

    def cut(self, array: Any, rows: slice, wide: Tensor | None = None) -> Parts:
        """Cut the first row and some others into layers."""
        cuts = [segment.columns for segment in self.block.segments]
        return Parts([array[0, c] for c in cuts], [array[rows, c] for c in cuts], wide)

    def summed_parts(self, weights: Sequence[float]) -> Parts:
        """Return the new row and the weighted sum of the old rows as float64 copies."""
        with torch.inference_mode(False):
            wide = torch.zeros(
                (2, self.block.width), dtype=_widest(self.block.device), device=self.block.device
            )
        wide[0] = self.rows[0]
        for task, weight in enumerate(weights):
            if weight:
                wide[1].add_(self.rows[task + 1], alpha=weight)
        return self.cut(as_array(wide, self.backend), slice(1, 2), wide)

    def put_aside(self, zeroed: Sequence[int] | None) -> Held:
        """Take every `.grad` away; `zeroed` are write counts of the zeroed first row."""
        block = self.block
        mine = [p.grad is not None and self.owns(k, p.grad) for k, p in enumerate(block.parameters)]
        held: Held = {}
        for k, p in enumerate(block.parameters):
            found = p.grad
            if found is None:
                continue
            if not mine[k]:
                refuse_sparse(p, found)
                held[p] = found
            # Otherwise nothing was added to the zeros.
            elif zeroed is None or self.views[0][k]._version != zeroed[k]:
                if not self.carried:
                    with torch.inference_mode(False):
                        place = torch.zeros(block.width, dtype=block.dtype, device=block.device)
                    self.carried = self._like(self._views(place))
                with torch.no_grad():
                    self.carried[k].copy_(found)
                held[p] = self.carried[k]
            p.grad = None
        return held

    def total(self, k: int, update: Tensor | None, before: Tensor | None) -> Tensor | None:
        """Return what `.grad` of parameter number k becomes."""
        if update is not None and self.carried and before is self.carried[k]:
            with torch.no_grad():
                return update.add_(before)
        return total(update, before)


def total(update: Tensor | None, before: Tensor | None) -> Tensor | None:
    """Return what `.grad` becomes."""
    if update is None or before is None:
        return before if update is None else update
    with torch.no_grad():
        # In place, as loss.backward() does, unless a graph needs the old value.
        return before.detach() + update if before.requires_grad else before.add_(update)


def _widest(device: torch.device) -> torch.dtype:
    """Return the widest floating-point dtype of a device: MPS has no float64."""
    return torch.float32 if device.type == "mps" else torch.float64


def refuse_sparse(p: nn.Parameter, grad: Tensor) -> None:
    if grad.layout != torch.strided:
        raise TypeError(
            f"the gradient of a parameter of shape {tuple(p.shape)} is sparse "
            f"({grad.layout}); use dense gradients, as nn.Embedding(sparse=False) does"
        )
