"""All gradients of a step: measured, combined and handed back, whatever dtypes a model mixes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

import gradproj as gp
from gradproj._measure import SAFE_COEFFICIENT, combine_layer, measure_layers
from gradproj._method import TOLERANCE_32, TOLERANCE_64
from gradproj.adapters.torch.backends import choose_backend
from gradproj.adapters.torch.buffer import Block

Floats = NDArray[np.float64]
HALF_LIMIT = torch.finfo(torch.float16).max


def _measure_one_by_one(new: Sequence[Any], old: Sequence[Any]) -> tuple[Floats, Floats]:
    """Inner products with NaN for the layers, and only those, that are not finite."""
    T = len(old[0])
    C, h = np.full((len(new), T, T), np.nan), np.full((len(new), T), np.nan)
    for layer, (g, G) in enumerate(zip(new, old, strict=True)):
        with suppress(gp.NotFiniteError):
            C[layer], h[layer] = gp.measure(g, G, precise=False)
    return C, h


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
        # Relative accuracy of the inner products, which the method's rank decisions need.
        self.tolerance = TOLERANCE_64 if exact else TOLERANCE_32

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

    def measure(self, tasks: int) -> tuple[Floats, Floats]:
        """Inner products of each layer, C (L, T, T) and h (L, T); NaN where they are not finite.

        With no old task the new gradient is measured against itself, to see that it is finite.
        """
        T = max(tasks, 1)
        C, h = np.zeros((self.layers, T, T)), np.zeros((self.layers, T))
        for block in self.blocks:
            parts = block.parts(tasks)
            numbers = [layer for layer, _, _ in block.segments]
            try:
                # All layers in one call: the core's checks cost more than a small layer's products.
                C_part, h_part, _ = measure_layers(
                    block.namespace, parts.new, parts.old, False, [""] * len(numbers)
                )
            except gp.NotFiniteError:
                # Not finite. Other processes wait for this one's numbers, so it goes on.
                C_part, h_part = _measure_one_by_one(parts.new, parts.old)
            if len(self.blocks) == 1:
                return C_part, h_part
            C[numbers] += C_part
            h[numbers] += h_part
        return C, h

    def lengths(self) -> list[Tensor]:
        """Length of row 1 in each segment of each block, without waiting for a device."""
        return [torch.stack(torch._foreach_norm(block.parts(1).columns)) for block in self.blocks]

    def squares(self, lengths: Sequence[Tensor]) -> Floats:
        """Squared length of each layer, from those of its segments."""
        total = np.zeros(self.layers)
        for block, found in zip(self.blocks, lengths, strict=True):
            total[[layer for layer, _, _ in block.segments]] += found.double().cpu().numpy() ** 2
        return total

    def combine(self, coefficients: Floats) -> None:
        """Turn row 0 into w = g + cᵀG, in place."""
        largest = np.abs(coefficients).max(1, initial=0.0).tolist()
        low, high = SAFE_COEFFICIENT
        for block in self.blocks:
            c = torch.from_numpy(coefficients).to(block.rows).unbind()
            parts = block.parts(coefficients.shape[1])
            for k, (layer, _, _) in enumerate(block.segments):
                if low < largest[layer] < high:
                    parts.update[k].addmv_(parts.columns[k], c[layer])
                elif largest[layer]:
                    g, G = parts.new[k], parts.old[k]
                    g[...] = combine_layer(block.namespace, g, G, coefficients[layer], True)

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
