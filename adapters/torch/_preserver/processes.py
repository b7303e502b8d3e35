"""Sums of moments over the processes that train one model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import distributed as dist
from torch import nn

import gradproj as gp
from gradproj.adapters.torch._layout import replicas
from gradproj.adapters.torch._preserver.protected import Protected


def group_of(model: nn.Module, given: dist.ProcessGroup | None) -> Any:
    """Return the processes whose moments add up, or None if there is only one."""
    if given is not None:
        return given
    wrapper = replicas(model)
    return None if wrapper is None else wrapper.process_group


def add_up(layers: Sequence[Protected], group: Any) -> None:
    """Replace the moments of each layer by their sum over all processes.

    A process may not have observed all layers, so that the counts are exchanged first.
    """
    if not layers:
        return
    device = next(iter(layers[0].parameters.values())).device
    counts = torch.tensor([layer.moments.count for layer in layers], device=device)
    dist.all_reduce(counts, group=group)
    for layer, count in zip(layers, counts.tolist(), strict=True):
        if not count:
            continue
        total = layer.total()
        dist.all_reduce(total, group=group)
        layer.moments = gp.InputMoments.from_total(total, count)
