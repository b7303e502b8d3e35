"""Unlabelled images from outside the stream, which GD and MUC use."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from gradproj.experiments.data import load
from gradproj.experiments.streams import Stream

__all__ = ["outside_images"]


def outside_images(
    name: str, stream: Stream, *, root: Path | None = None, limit: int = 50_000, seed: int = 0
) -> Tensor:
    """Load images of the stream's shape, float32 in [0, 1].

    Parameters
    ----------
    name : str
        "shuffled" takes images of the stream's first task and shuffles the pixels of each, which
        needs no further data. Other names are data sets for `gradproj.experiments.data.load`, whose
        images are resized if necessary.
    stream : Stream
    root : path, optional
        The data folder.
    limit : int
        Largest number of images: random ones of a data set, or the first ones of the stream.
    seed : int
        Seed of the draws.

    Examples
    --------
    >>> from gradproj.experiments.streams import benchmarks
    >>> outside_images("shuffled", benchmarks.build("class-digits"), limit=7).shape
    torch.Size([7, 1, 8, 8])
    """
    generator = torch.Generator().manual_seed(seed)
    if name == "shuffled":
        x = stream.tasks[0].train()[0][:limit].flatten(2)
        pixels = torch.rand(len(x), x.shape[2], generator=generator).argsort(1)
        moved = x.gather(2, pixels[:, None].expand_as(x))
        return moved.view(len(x), *stream.input_shape)
    dataset = load(name, root)
    rows = torch.randperm(len(dataset.train_x), generator=generator)[:limit]
    images = dataset.train_x[rows].float() / dataset.scale
    channels, height, width = stream.input_shape
    if dataset.shape[1:] != (height, width):
        images = functional.interpolate(images, (height, width), mode="area")
    if dataset.shape[0] != channels:
        images = images.mean(1, keepdim=True).expand(-1, channels, -1, -1).contiguous()
    return images
