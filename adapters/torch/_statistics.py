"""Running statistics of normalization layers and observers, kept while old batches pass."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from gradproj.adapters.torch import _arguments


@contextmanager
def keep_running_statistics(model: nn.Module) -> Iterator[None]:
    """Restore the running statistics of a model on leaving.

    These are the buffers of batch and instance norms, and of the observers of quantization-aware
    training.

    Examples
    --------
    >>> model = nn.BatchNorm1d(2)
    >>> with keep_running_statistics(model):
    ...     _ = model(torch.ones(3, 2))
    >>> model.running_mean
    tensor([0., 0.])
    """
    _arguments.model(model)
    saved = [
        (module, name, buffer, buffer.clone())
        for module in model.modules()
        if moves_statistics(module)
        for name, buffer in module.named_buffers(recurse=False)
    ]
    try:
        yield
    finally:
        with torch.no_grad():
            for module, name, buffer, before in saved:
                if getattr(module, name) is buffer and buffer.shape == before.shape:
                    buffer.copy_(before)
                else:  # an observer starts with empty buffers and replaces or resizes them
                    setattr(module, name, before)


def moves_statistics(module: nn.Module) -> bool:
    """Whether a forward pass of the module changes running statistics."""
    return isinstance(module, _NormBase) or is_observer(module)


def is_observer(module: nn.Module) -> bool:
    """Whether a module is an observer of quantization-aware training."""
    # By name: importing torch.ao.quantization takes a second.
    return any(
        base.__name__ in ("ObserverBase", "FakeQuantizeBase") and "quantization" in base.__module__
        for base in type(module).__mro__
    )


def refuse_tensors(old_losses: Iterable[Any]) -> None:
    """Raise for losses whose forward pass has already moved the statistics."""
    if isinstance(old_losses, Collection) and any(isinstance(x, Tensor) for x in old_losses):
        raise ValueError(
            "old_losses holds tensors: their forward passes have already moved the running "
            "statistics; with running_statistics=False pass functions or a generator"
        )
