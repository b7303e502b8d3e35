"""Random changes of image batches, driven by a generator that a checkpoint can hold."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional

__all__ = ["crop_and_flip", "cutmix"]


def crop_and_flip(x: Tensor, generator: torch.Generator, padding: int = 4) -> Tensor:
    """Shift each image by up to `padding` pixels (zeros come in) and mirror every second one.

    Examples
    --------
    >>> crop_and_flip(torch.ones(2, 3, 8, 8), torch.Generator().manual_seed(0)).shape
    torch.Size([2, 3, 8, 8])
    """
    n, _, height, width = x.shape
    down, right = torch.randint(2 * padding + 1, (2, n), generator=generator)
    mirrored = torch.rand(n, generator=generator) < 0.5
    rows = down[:, None] + torch.arange(height)
    columns = right[:, None] + torch.arange(width)
    columns = torch.where(mirrored[:, None], columns.flip(1), columns)
    padded = functional.pad(x, [padding] * 4)
    sample = torch.arange(n)[:, None, None, None]
    channel = torch.arange(x.shape[1])[None, :, None, None]
    return padded[sample, channel, rows[:, None, :, None], columns[:, None, None, :]]


def cutmix(
    x: Tensor, generator: torch.Generator, alpha: float = 1.0
) -> tuple[Tensor, Tensor, float]:
    """Paste one random box of shuffled images into all; return them, the shuffle, the share kept.

    Examples
    --------
    >>> mixed, partner, kept = cutmix(torch.rand(4, 3, 8, 8), torch.Generator().manual_seed(0))
    >>> mixed.shape, len(partner), 0.0 <= kept <= 1.0
    (torch.Size([4, 3, 8, 8]), 4, True)
    """
    n, _, height, width = x.shape
    partner = torch.randperm(n, generator=generator)
    # A ratio of two gamma draws is a beta draw; torch's beta takes no generator.
    gammas = torch._standard_gamma(torch.full((2,), alpha), generator=generator)
    side = math.sqrt(1 - float(gammas[0] / gammas.sum()))
    cy, cx = torch.rand(2, generator=generator).tolist()
    top, bottom = _span(cy * height, side * height, height)
    left, right = _span(cx * width, side * width, width)
    mixed = x.clone()
    mixed[:, :, top:bottom, left:right] = x[partner][:, :, top:bottom, left:right]
    kept = 1 - (bottom - top) * (right - left) / (height * width)
    return mixed, partner, kept


def _span(centre: float, length: float, limit: int) -> tuple[int, int]:
    start, stop = int(centre - length / 2), int(centre + length / 2)
    return max(0, start), min(limit, max(stop, 0))
