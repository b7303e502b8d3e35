"""The gradient of a linear layer as a product Dᵀ A of few rows, to which M is applied faster.

With output gradients D (rows, out) and inputs A (rows, in), the update is Dᵀ(A M). That takes fewer
operations than (Dᵀ A) M if there are fewer rows than outputs. A and D are seen by hooks, which
change nothing. Whether ``.grad`` is that product is not known: other uses of the weight, clipping
or another process may have changed it. So it is checked in each step, with random vectors.
"""

from __future__ import annotations

import math
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

_size = torch.linalg.vector_norm


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
        self._vectors: tuple[Any, tuple[Tensor, ...]] | None = None
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
        first, second = self._random(A)
        seen, known = _images(A, D, weight, bias, first)
        if _equal(seen, known, A, D):
            return A, D
        # Clipping, unscaling and means over batches multiply the gradient by a common factor. It is
        # checked with the second vector, because if D has one row, any gradient Dᵀ x fits the first
        # vector for some factor.
        D = D * (torch.dot(known, seen) / torch.dot(known, known))
        seen, known = _images(A, D, weight, bias, second)
        return (A, D) if _equal(seen, known, A, D) else None

    def _random(self, A: Tensor) -> tuple[Tensor, ...]:
        """Return two fixed vectors."""
        key = (A.shape[1], A.dtype, A.device)
        if self._vectors is None or self._vectors[0] != key:
            generator = torch.Generator().manual_seed(0)
            V = torch.randn(2, A.shape[1], generator=generator, dtype=torch.float64)
            self._vectors = key, V.to(A).unbind()
        return self._vectors[1]


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


def _images(
    A: Tensor, D: Tensor, weight: Tensor, bias: Tensor | None, vector: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the products of a vector with [weight bias] and with Dᵀ A."""
    seen = torch.mv(weight, vector[: weight.shape[1]])
    if bias is not None:
        seen = torch.addcmul(seen, bias, vector[-1])
    return seen, torch.mv(D.T, torch.mv(A, vector))


def _equal(seen: Tensor, known: Tensor, A: Tensor, D: Tensor) -> bool:
    """Return whether two vectors are equal up to the rounding of Dᵀ A.

    The sizes are copied to the host at once, so that a GPU is waited for once.
    """
    sizes = [_size(seen - known), _size(seen), _size(A), _size(D)]
    error, size, a, d = (float(each) for each in torch.stack(sizes).tolist())
    limit = min(_ERRORS * torch.finfo(A.dtype).eps * a * d, _UNNOTICED * size)
    return error <= limit < math.inf  # false if any number is NaN or infinite


def _joined(parts: Sequence[Tensor]) -> Tensor:
    rows = [part.reshape(-1, part.shape[-1]) for part in parts]
    return rows[0] if len(rows) == 1 else torch.cat(rows)


def worthwhile(rows: int, size: int, inputs: int) -> bool:
    """Return whether Dᵀ(A M) takes fewer operations than G M, with something to spare."""
    return rows * inputs * (inputs + size) + _OVERHEAD < size * inputs * inputs
