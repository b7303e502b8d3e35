"""Random augmentation of image batches, driven by a generator that a checkpoint can hold."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

__all__ = ["AUGMENTATIONS", "color_jitter", "crop_and_flip", "cutmix", "one_of_twelve"]


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


def color_jitter(
    x: Tensor, generator: torch.Generator, brightness: float = 63 / 255, contrast: float = 0.8
) -> Tensor:
    """Scale the brightness and the contrast of each image by random factors, in random order.

    The factors are uniform in [1 − brightness, 1 + brightness] and [1 − contrast, 1 + contrast].
    The defaults are those of GD. Contrast is relative to the mean of the gray image, and pixels
    stay in [0, 1], as with torchvision's ColorJitter.

    Examples
    --------
    >>> color_jitter(torch.rand(2, 3, 8, 8), torch.Generator().manual_seed(0)).shape
    torch.Size([2, 3, 8, 8])
    """
    factors = 1 + (2 * torch.rand(2, len(x), 1, 1, 1, generator=generator) - 1) * torch.tensor(
        [brightness, contrast]
    ).view(2, 1, 1, 1, 1)
    light, spread = factors.to(x)
    light_first = torch.rand(len(x), 1, 1, 1, generator=generator) < 0.5
    one = _contrast((x * light).clamp(0, 1), spread)
    other = (_contrast(x, spread) * light).clamp(0, 1)
    return torch.where(light_first.to(x.device), one, other)


def one_of_twelve(x: Tensor, generator: torch.Generator) -> Tensor:
    """Replace each image by one of the twelve forms to which EEIL expands it.

    The forms are all combinations of: as it is, brighter or darker by up to 63 / 255, or with its
    contrast scaled by 0.2 to 1.8; whole or cropped; mirrored or not. Twelve epochs of this
    correspond to one epoch over the expanded set, except that the forms are drawn each time.

    Examples
    --------
    >>> one_of_twelve(torch.rand(2, 3, 8, 8), torch.Generator().manual_seed(0)).shape
    torch.Size([2, 3, 8, 8])
    """
    n = len(x)
    kind = torch.randint(3, (n, 1, 1, 1), generator=generator).to(x.device)
    added = (2 * torch.rand(n, 1, 1, 1, generator=generator) - 1) * (63 / 255)
    spread = 0.2 + 1.6 * torch.rand(n, 1, 1, 1, generator=generator)
    changed = torch.where(kind == 1, (x + added.to(x)).clamp(0, 1), x)
    changed = torch.where(kind == 2, _contrast(x, spread.to(x)), changed)
    cropped = torch.rand(n, 1, 1, 1, generator=generator) < 0.5
    mirrored = torch.rand(n, 1, 1, 1, generator=generator) < 0.5
    whole = torch.where(mirrored.to(x.device), changed.flip(3), changed)
    return torch.where(cropped.to(x.device), crop_and_flip(changed, generator), whole)


def _jitter_crop_and_flip(x: Tensor, generator: torch.Generator) -> Tensor:
    return crop_and_flip(color_jitter(x, generator), generator)


# The values of the configuration's key `augment`, besides "none".
AUGMENTATIONS: dict[str, Callable[[Tensor, torch.Generator], Tensor]] = {
    "crop-flip": crop_and_flip,
    "jitter-crop-flip": _jitter_crop_and_flip,
    "twelvefold": one_of_twelve,
}

# Shares of red, green and blue in a gray image (ITU-R 601).
_GRAY = (0.299, 0.587, 0.114)


def _contrast(x: Tensor, factor: Tensor) -> Tensor:
    """Scale the distance of the pixels from the mean of the gray image, and keep them in [0, 1]."""
    gray = x
    if x.shape[1] == 3:
        gray = (x * torch.tensor(_GRAY).view(1, 3, 1, 1).to(x)).sum(1, keepdim=True)
    mean = gray.mean((1, 2, 3), keepdim=True)
    return (mean + (x - mean) * factor).clamp(0, 1)


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
