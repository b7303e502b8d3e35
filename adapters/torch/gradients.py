"""All gradients of a step: measured, combined and handed back, whatever dtypes a model mixes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

import gradproj as gp
from gradproj.adapters.torch.backends import choose_backend, on_torch_stream
from gradproj.adapters.torch.buffer import Block

Floats = NDArray[np.float64]
HALF_LIMIT = torch.finfo(torch.float16).max


class Gradients:
    """One block a (dtype, device) pair; inner products of a layer add up over its blocks."""

    def __init__(self, layers: Sequence[Sequence[nn.Parameter]], backend: str) -> None:
        self.layers = len(layers)
        kinds: dict[tuple[torch.dtype, torch.device], list[tuple[int, list[nn.Parameter]]]] = {}
        for number, members in enumerate(layers):
            for p in members:
                parts = kinds.setdefault((p.dtype, p.device), [])
                if not parts or parts[-1][0] != number:
                    parts.append((number, []))
                parts[-1][1].append(p)
        self.blocks = [
            Block(parts, choose_backend(backend, device)) for (_, device), parts in kinds.items()
        ]
        self.backend = self.blocks[0].backend
        self.device = self.blocks[0].rows.device
        exact = all(dtype == torch.float64 for dtype, _ in kinds)
        self.epsilon = torch.finfo(torch.float64 if exact else torch.float32).eps

    @property
    def parameters(self) -> list[nn.Parameter]:
        """All parameters, block by block."""
        return [p for block in self.blocks for p in block.parameters]

    def prepare(self, rows: int) -> None:
        """Make room for exactly so many rows; nothing is kept of what was there."""
        if rows > len(self.blocks[0].rows):
            self.clear()  # or the views would keep the old rows alive beside the new ones
            for block in self.blocks:
                block.allocate(rows)

    def reserve(self, rows: int) -> None:
        """Make room for so many rows, and some more, beside what is there."""
        for block in self.blocks:
            block.reserve(rows)

    def aim(self, row: int, add: bool = False) -> list[list[int]]:
        """Let every `.grad` be a view of a row, as `Block.aim`; return the views' write counts."""
        for block in self.blocks:
            block.aim(row, add)
        return [block.versions(row) for block in self.blocks]

    def collect(
        self, row: int, before: list[list[int]] | None, add: bool = False
    ) -> tuple[list[bool], int]:
        """Bring `.grad` into the row; return which parameters have one and how many were copied."""
        touched: list[bool] = []
        copied = 0
        for number, block in enumerate(self.blocks):
            flags, count = block.collect(row, before[number] if before else None, add)
            touched += flags
            copied += count
        return touched, copied

    def write(self, gradients: Mapping[nn.Parameter, Tensor]) -> None:
        """Write gradients (T, *shape) of all old tasks into rows 1 to T."""
        for block in self.blocks:
            for p, place in zip(block.parameters, block.places, strict=True):
                stacked = gradients[p]
                rows = block.rows[1 : len(stacked) + 1, place.columns]
                rows.as_strided(stacked.shape, (rows.stride(0), *place.strides)).copy_(stacked)

    def used(self, tasks: int, known: Sequence[bool]) -> list[bool]:
        """Return which parameters have a gradient, where the rows of the old tasks must tell.

        `known` says which are known to have one: only the others are looked through.
        """
        flags = iter(known)
        return [
            next(flags) or bool(block.rows[1 : tasks + 1, place.columns].any())
            for block in self.blocks
            for place in block.places
        ]

    def measure(self, tasks: int) -> gp.Products:
        """Measure the inner products of each layer; NaN where gradients are not finite.

        A layer that mixes dtypes or devices adds up the products of its blocks.
        """
        total = gp.Products(
            np.zeros((self.layers, tasks, tasks)),
            np.zeros((self.layers, tasks)),
            np.zeros(self.layers),
            np.zeros(self.layers),
        )
        for block in self.blocks:
            parts = block.parts(tasks)
            with on_torch_stream(block.backend, block.rows.device):
                found = gp.measure_layers(parts.new, parts.old, check=False)
            if len(self.blocks) == 1:
                return found
            numbers = [layer for layer, _, _ in block.segments]
            total.C[numbers] += found.C
            total.h[numbers] += found.h
            total.square[numbers] += found.square
            total.tolerance[numbers] = np.maximum(total.tolerance[numbers], found.tolerance)
        return total

    def lengths(self) -> list[Tensor]:
        """Length of row 1 in each segment of each block, without waiting for a device."""
        return [torch.stack(torch._foreach_norm(block.parts(1).columns)) for block in self.blocks]

    def squares(self, lengths: Sequence[Tensor]) -> Floats:
        """Squared length of each layer, from those of its segments."""
        total = np.zeros(self.layers)
        for block, found in zip(self.blocks, lengths, strict=True):
            total[[layer for layer, _, _ in block.segments]] += found.double().cpu().numpy() ** 2
        return total

    def combine(self, solution: gp.Solution) -> None:
        """Turn row 0 into w = s g + cᵀG, in place."""
        for block in self.blocks:
            parts = block.parts(solution.coefficients.shape[1])
            chosen = solution[[layer for layer, _, _ in block.segments]]
            with on_torch_stream(block.backend, block.rows.device):
                gp.combine_layers(parts.new, parts.old, chosen, out=parts.new)

    def release(self, kept: Sequence[nn.Parameter]) -> None:
        """Take the buffer's views out of the `.grad` of all parameters but those."""
        staying = {id(p) for p in kept}
        for block in self.blocks:
            for k, p in enumerate(block.parameters):
                if id(p) not in staying and any(p.grad is grads[k] for grads in block.grads):
                    p.grad = None

    def clear(self) -> None:
        """Take `.grad` away from all parameters."""
        for p in self.parameters:
            p.grad = None

    def fits(self) -> bool:
        """Whether row 0 can be rounded to float16, where parameters have that dtype."""
        return all(
            float(torch.linalg.vector_norm(block.rows[0], torch.inf)) <= HALF_LIMIT
            for block in self.blocks
            if block.landing is not None and block.landing.dtype == torch.float16
        )

    def poison(self) -> None:
        """Fill row 0 with NaN: whoever looks at `.grad` sees that the step must be skipped."""
        for block in self.blocks:
            block.rows[0].fill_(torch.nan)

    def finish(self, touched: Sequence[bool]) -> None:
        """Let `.grad` be row 0, and None for a parameter that no loss has used."""
        flags = iter(touched)
        for block in self.blocks:
            block.write_back()
            for p, grad in zip(block.parameters, block.grads[0], strict=True):
                p.grad = grad if next(flags) else None
