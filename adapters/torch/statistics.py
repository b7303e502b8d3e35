"""Running statistics of batch norm, kept as they are while the old tasks' batches pass."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase


@contextmanager
def kept(model: nn.Module) -> Iterator[None]:
    """Restore the running statistics of all batch and instance norms on leaving."""
    buffers = [b for m in model.modules() if isinstance(m, _NormBase) for b in m.buffers(False)]
    saved = [b.clone() for b in buffers]
    try:
        yield
    finally:
        with torch.no_grad():
            for buffer, before in zip(buffers, saved, strict=True):
                buffer.copy_(before)


def refuse_tensors(old_losses: Iterable[Any]) -> None:
    """Raise for losses whose forward pass has already moved the statistics."""
    if isinstance(old_losses, Collection) and any(isinstance(x, Tensor) for x in old_losses):
        raise ValueError(
            "old_losses holds tensors: their forward passes have already moved the running "
            "statistics; with running_statistics=False pass functions or a generator"
        )
