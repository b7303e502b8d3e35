"""`Solver`: from the rows of a step to its update."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

import gradproj as gp
from gradproj.adapters.torch._backends import on_torch_stream
from gradproj.adapters.torch._block_rows import Parts
from gradproj.adapters.torch._processes import Processes
from gradproj.adapters.torch._rows import Rows, Task

HostArray = NDArray[np.float64]

ADVICE = 'lower the learning rate, or with mixed precision use overflow="skip"'


class Apart(Protocol):
    """Gradients that are not in the rows: an engine has another form for them."""

    def choose(self) -> frozenset[nn.Parameter]:
        """Return the parameters, once the first forward pass has been made."""
        ...

    def recording(self, task: Task) -> AbstractContextManager[None]:
        """Take the gradients of a backward pass that is made inside the context."""
        ...

    def used(self, parameter: nn.Parameter) -> bool:
        """Whether any backward pass had a gradient for one of the parameters."""
        ...

    def products(self, parameter: nn.Parameter) -> gp.Products:
        """Return the inner products of a parameter's gradients."""
        ...

    def combine(self, parameter: nn.Parameter, coefficients: HostArray, scale: HostArray) -> Tensor:
        """Return the update of a parameter."""
        ...

    def clear(self) -> None:
        """Drop all gradients."""
        ...


class Solver:
    """Measures the inner products, sums them over processes, solves, and combines."""

    def __init__(self, method: gp.Method, processes: Processes) -> None:
        self.method = method
        self.processes = processes

    def begin(self, tasks: int | None) -> gp.Reduction | None:
        """Ask the method for the one combination that it needs; S-GEM draws its task then.

        None if the number of old tasks is not known yet, or if every old gradient is needed.
        """
        reduction = self.method.reduce(tasks) if tasks else None
        if reduction is not None and len(reduction.weights) != tasks:
            raise ValueError(
                f"{type(self.method).__name__}.reduce({tasks}) returned {len(reduction.weights)} "
                "weights: return one per old task"
            )
        if reduction is None or is_choice(reduction):
            return reduction
        # A sum that cancels is recognized by the lengths of its terms. Averaged or sharded terms
        # are in no single process.
        return reduction if self.processes.mode is None else None

    def measure(
        self, rows: Rows, parts: Sequence[Parts], apart: Apart | None = None
    ) -> gp.Products:
        """Measure the inner products of each layer; raise NotFiniteError for NaN or infinity."""
        found = []
        for block, part in zip(rows.blocks, parts, strict=True):
            if part.new:
                with on_torch_stream(block.backend, block.block.device):
                    measured = gp.measure_layers(part.new, part.old, check=False)
                found.append((block.block.layers, measured))
        if apart is not None:
            found += [([layer], apart.products(p)[None]) for p, layer in rows.apart.items()]
        layers = len(rows.layout.names)
        complete = len(found) == 1 and len(found[0][0]) == layers
        products = found[0][1] if complete else _added(layers, found)
        products = self.processes.total(products, rows)
        finite = products.finite & np.isfinite(products.square)
        if not finite.all():
            layer = list(rows.layout.names)[finite.argmin()]
            raise gp.NotFiniteError(
                f"the gradients of layer {layer!r} contain NaN or infinity; {ADVICE}"
            )
        return products

    def solve(
        self,
        products: gp.Products,
        reduction: gp.Reduction | None,
        scale: HostArray | None,
        epsilon: float,
    ) -> gp.Solution:
        """Return the coefficients of the rows.

        `scale` has the added lengths of the terms of a sum, per layer. Where only rounding is left
        of the sum, it counts as zero.
        """
        if reduction is None:
            return self.method.solve(products)
        if scale is not None:
            zero = reduction.cancels(products.C[:, 0, 0], scale, epsilon)
            products.C[zero], products.h[zero] = 0.0, 0.0
        return reduction.method.solve(products)

    def combine(
        self,
        rows: Rows,
        parts: Sequence[Parts],
        solution: gp.Solution,
        apart: Apart | None = None,
    ) -> None:
        """Replace the new task's row by the update; raise NotFiniteError if it does not fit."""
        fits = True
        for block, part in zip(rows.blocks, parts, strict=True):
            if not part.new:
                continue
            complete = len(part.new) == len(solution.coefficients)
            chosen = solution if complete else solution[block.block.layers]
            with on_torch_stream(block.backend, block.block.device):
                try:
                    gp.combine_layers(part.new, part.old, chosen, out=part.new)
                except gp.NotFiniteError:
                    fits = False
        rows.narrow(parts)
        rows.updates = {}
        for p, layer in rows.apart.items():
            if apart is not None and apart.used(p):
                update = apart.combine(p, solution.coefficients[layer], solution.scale[layer])
                fits = fits and math.isfinite(torch.linalg.vector_norm(update, torch.inf))
                rows.updates[p] = update
        if not self.processes.agree(fits and rows.fits(), rows):
            raise gp.NotFiniteError(f"the update does not fit into the gradients' dtype; {ADVICE}")


def is_choice(reduction: gp.Reduction) -> bool:
    """Whether a reduction is one of the old gradients as it is, and not a sum."""
    tasks = reduction.tasks
    return len(tasks) == 1 and reduction.weights[tasks[0]] == 1


def added_lengths(rows: Rows, lengths: Sequence[Sequence[Tensor]], weights: HostArray) -> HostArray:
    """Return Σ |aᵢ| ‖gᵢ‖ of each layer, from the lengths that `Rows.lengths` returned."""
    found = np.zeros((len(weights), len(rows.layout.names)))
    for number, block in enumerate(rows.blocks):
        each = torch.cat([terms[number] for terms in lengths]).double().cpu().numpy()
        layers = block.block.layers
        found[:, layers] = np.hypot(found[:, layers], each)
    added: HostArray = np.abs(weights) @ found
    return added


def _added(L: int, found: Sequence[tuple[list[int], gp.Products]]) -> gp.Products:
    """Add up the products of layers that mix dtypes, devices or forms of gradients."""
    T = found[0][1].h.shape[1]
    total = gp.Products(np.zeros((L, T, T)), np.zeros((L, T)), np.zeros(L), np.zeros(L))
    for layers, products in found:
        total.C[layers] += products.C
        total.h[layers] += products.h
        total.square[layers] += products.square
        total.tolerance[layers] = np.maximum(total.tolerance[layers], products.tolerance)
    return total
