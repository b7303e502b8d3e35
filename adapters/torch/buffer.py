"""The (T+1, N) buffer: gradients land in its rows because `.grad` is a view of them.

Row 0 is the new task's, row i + 1 is old task i's: the new task's row stays where it is while the
tasks grow. Parameters lie in layer order, so that a layer is a range of columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from gradproj.adapters.torch import shards
from gradproj.adapters.torch.backends import as_array

HALF = (torch.float16, torch.bfloat16)


class Parts(NamedTuple):
    """A block cut into its segments."""

    new: list[Any]  # (N_l,), arrays of the measuring library
    old: list[Any]  # (T, N_l)
    columns: list[Tensor]  # (N_l, T), the memory of `old` as tensors


class Place(NamedTuple):
    """Where a parameter's gradient lies in a row, and how."""

    columns: slice
    shape: torch.Size
    strides: tuple[int, ...]


class Block:
    """Rows for the parameters of one dtype and one device.

    float16 and bfloat16 gradients land in a single row of their own dtype and are converted once,
    on entry, to float32 rows: inner products over millions of numbers need it.
    """

    def __init__(self, layers: Sequence[tuple[int, Sequence[nn.Parameter]]], backend: str) -> None:
        self.backend = backend
        self.parameters = [p for _, members in layers for p in members]
        self.segments: list[tuple[int, int, int]] = []
        # No tensor is kept: it would hold old weights whose parameter has got others.
        self.places: list[Place] = []
        width = 0
        for layer, members in layers:
            start = width
            for p in members:
                t = shards.local(p.detach())
                columns = slice(width, width + t.numel())
                self.places.append(Place(columns, t.shape, dense_strides(t)))
                width = columns.stop
            self.segments.append((layer, start, width))
        first = shards.local(self.parameters[0].detach())
        self.width = width
        with torch.inference_mode(False):  # or it could not be written to in any other mode
            self.landing = first.new_zeros(width) if first.dtype in HALF else None
        work = torch.float32 if self.landing is not None else first.dtype
        self.rows = first.new_zeros((0, width), dtype=work)
        self.views: list[list[Tensor]] = []
        self.grads: list[list[Tensor]] = []
        self.array: Any = None
        self._parts: tuple[int, Parts] | None = None

    def reserve(self, count: int) -> None:
        """Make room for `count` rows; the capacity doubles, so that growth is rare."""
        if count > len(self.rows):
            known = self.rows
            self.allocate(max(count, 2 * len(known)))
            self.rows[: len(known)] = known

    def allocate(self, count: int) -> None:
        """Take exactly `count` new rows of zeros in place of those that were there."""
        self.array, self._parts = None, None
        self.views, self.grads = [], []
        with torch.inference_mode(False):
            self.rows = self.rows.new_zeros((count, self.width))
        self.array = as_array(self.rows, self.backend)
        if self.landing is not None:
            views = self._views(self.landing)
            self.views = [views] * count
        else:
            self.views = [self._views(row) for row in self.rows]
        self.grads = [
            [shards.like(p, view) for p, view in zip(self.parameters, views, strict=True)]
            for views in self.views
        ]

    def _views(self, row: Tensor) -> list[Tensor]:
        # `.data` gives each view its own version counter, which tells whether autograd wrote to it.
        return [
            row[place.columns].as_strided(place.shape, place.strides).data
            if place.shape.numel()
            else row.new_zeros(place.shape)
            for place in self.places
        ]

    def parts(self, tasks: int) -> Parts:
        """Views of the segments for so many old tasks; made once, as long as they stay so many."""
        if self._parts is None or self._parts[0] != tasks:
            rows = slice(1, tasks + 1)
            cuts = [slice(start, stop) for _, start, stop in self.segments]
            self._parts = (
                tasks,
                Parts(
                    [self.array[0, cut] for cut in cuts],
                    [self.array[rows, cut] for cut in cuts],
                    [self.rows[1 : tasks + 1, cut].T for cut in cuts],
                ),
            )
        return self._parts[1]

    def aim(self, row: int, add: bool = False) -> None:
        """Let every `.grad` be a view of the row; zero it unless backward is to add to it."""
        if self.landing is not None:
            self.landing.zero_()
        elif not add:
            self.rows[row].zero_()
        for p, grad in zip(self.parameters, self.grads[row], strict=True):
            p.grad = grad

    def versions(self, row: int) -> list[int]:
        """Write counts of the row's views; they move when autograd accumulates."""
        return [view._version for view in self.views[row]]

    def collect(
        self, row: int, before: Sequence[int] | None, add: bool = False
    ) -> tuple[list[bool], int]:
        """Bring `.grad` into the row where it is not there already.

        With `add`, the row was aimed at with what it had: autograd has added to it.

        Returns
        -------
        touched : list of bool
            Which parameters got a gradient at all.
        copied : int
            How many gradients had been put elsewhere and were copied.
        """
        touched, copied = [], 0
        for k, (p, grad, view) in enumerate(
            zip(self.parameters, self.grads[row], self.views[row], strict=True)
        ):
            found = p.grad
            if found is grad:
                touched.append(before is None or view._version != before[k])
            elif found is None:
                if not add:
                    view.zero_()
                touched.append(False)
            else:
                if found.layout != torch.strided:
                    raise TypeError(
                        f"the gradient of a parameter of shape {tuple(p.shape)} is sparse "
                        f"({found.layout}); use dense gradients, as nn.Embedding(sparse=False) does"
                    )
                # Detached: after backward(create_graph=True) the buffer would keep the graph.
                view.copy_(shards.local(found.detach()))
                touched.append(True)
                copied += 1
        if self.landing is not None and add:
            self.rows[row] += self.landing
        elif self.landing is not None:
            self.rows[row].copy_(self.landing)
        return touched, copied

    def write_back(self) -> None:
        """Round row 0 to the parameters' own dtype."""
        if self.landing is not None:
            self.landing.copy_(self.rows[0])


def dense_strides(t: Tensor) -> tuple[int, ...]:
    """Strides of a gradient: the parameter's own memory order if that is one dense block.

    >>> image = torch.zeros(2, 3, 4, 4).to(memory_format=torch.channels_last)
    >>> dense_strides(image) == image.stride()
    True
    """
    expected = 1
    for stride, size in sorted((s, n) for s, n in zip(t.stride(), t.shape, strict=True) if n > 1):
        if stride != expected:
            return torch.empty(t.shape, device="meta").stride()
        expected *= size
    return t.stride()
