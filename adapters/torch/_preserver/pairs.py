"""The gradient of a linear layer as a product Dᵀ A of few rows, to which M is applied faster.

With output gradients D (rows, out) and inputs A (rows, in), the update is Dᵀ(A M). That takes fewer
operations than (Dᵀ A) M if there are fewer rows than outputs. A and D are seen by hooks, which
change nothing. Whether ``.grad`` is that product is not known: other uses of the weight, clipping
or another process may have changed it. So it is checked in each step, with random vectors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any
from weakref import ref

import torch
from torch import Tensor, nn

from gradproj.adapters.torch._preserver.kinds import completed

# Multiplications that the hooks and the check take as long as: 70 µs on one core.
_OVERHEAD = 1 << 21
# Rounding errors of a product in units of its dtype's, and the largest part of a gradient that may
# go unnoticed where its rows cancel.
_ERRORS = 64
_UNNOTICED = 1e-4


class Pairs:
    """Inputs and output gradients of one linear layer since its last step.

    Parameters
    ----------
    module : Linear
        The layer. Its hook lives as long as this object.
    """

    def __init__(self, module: nn.Linear) -> None:
        self._shape = tuple(module.weight.shape)
        self._rows = 0
        self._pairs: list[tuple[Tensor, Tensor]] = []
        self._vectors: Tensor | None = None
        self._handle = module.register_forward_hook(_Hook(ref(self)))

    def __del__(self) -> None:
        self._handle.remove()

    def __len__(self) -> int:
        return len(self._pairs)

    def see(self, args: tuple[Any, ...], output: Tensor) -> None:
        """Record the pair of one forward pass when its backward pass comes."""
        if len(args) != 1 or not output.requires_grad:
            return
        if torch.is_autocast_enabled(output.device.type):
            return
        if worthwhile(output.numel() // output.shape[-1], *self._shape):
            add = partial(self._add, args[0].detach())
            output.register_hook(add)  # type: ignore[no-untyped-call]

    def _add(self, input: Tensor, gradient: Tensor) -> None:
        rows = gradient.numel() // gradient.shape[-1]
        self._rows += rows
        if not worthwhile(self._rows, *self._shape):
            # The count stays, so that a gradient over many batches is not taken for a part of it.
            self._pairs.clear()
        else:
            self._pairs.append((input, gradient.detach()))

    def take(self, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor] | None:
        """Return A and D if [weight bias] is Dᵀ A up to rounding, or None; forget them."""
        pairs, self._pairs, self._rows = self._pairs, [], 0
        if not pairs:
            return None
        A, D = (_joined(part) for part in zip(*pairs, strict=True))
        if not A.dtype == D.dtype == weight.dtype or A.device != weight.device:
            return None
        A = completed(A, bias is not None)
        # Products with single vectors: torch's with two columns take ten times as long.
        vectors = self._random(A)
        seen = torch.stack([weight @ v[: weight.shape[1]] for v in vectors])
        if bias is not None:
            seen += torch.outer(vectors[:, -1], bias)
        known = torch.stack([A @ v for v in vectors]) @ D
        # Clipping, unscaling and means over batches multiply the gradient by a common factor.
        factor = torch.vdot(known.view(-1), seen.view(-1)) / known.square().sum()
        size = torch.linalg.vector_norm
        rounding = _ERRORS * torch.finfo(A.dtype).eps * factor.abs() * size(A) * size(D)
        limit = torch.minimum(rounding, _UNNOTICED * size(seen))
        # Also false if anything is NaN or infinite.
        if not bool(size(seen - factor * known) <= limit):
            return None
        return A, D * factor

    def _random(self, A: Tensor) -> Tensor:
        """Return two fixed vectors as rows.

        One would not be enough: if D has one row, any gradient of the form Dᵀ x fits some factor.
        """
        V = self._vectors
        if V is None or (V.shape[1], V.dtype, V.device) != (A.shape[1], A.dtype, A.device):
            generator = torch.Generator().manual_seed(0)
            V = torch.randn(2, A.shape[1], generator=generator, dtype=torch.float64)
            self._vectors = V = V.to(A)
        return V


class _Hook:
    """A forward hook, which does nothing in copies of the model."""

    def __init__(self, pairs: Callable[[], Pairs | None]) -> None:
        self._pairs = pairs

    def __call__(self, module: nn.Module, args: tuple[Any, ...], output: Tensor) -> None:
        del module
        if torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active():
            return
        pairs = self._pairs()
        if pairs is not None:
            pairs.see(args, output)

    def __reduce__(self) -> tuple[Any, ...]:
        return _Hook, (_nothing,)


def _nothing() -> None:
    return None


def _joined(parts: Sequence[Tensor]) -> Tensor:
    rows = [part.reshape(-1, part.shape[-1]) for part in parts]
    return rows[0] if len(rows) == 1 else torch.cat(rows)


def worthwhile(rows: int, size: int, inputs: int) -> bool:
    """Return whether Dᵀ(A M) takes fewer operations than G M, with something to spare."""
    return rows * inputs * (inputs + size) + _OVERHEAD < size * inputs * inputs
