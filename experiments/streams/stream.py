"""Tasks, and streams of them.

All tasks share the images of the data set, stored as bytes. A task holds indices into them (and a
pixel map) and converts images to floats on demand, so a stream needs little memory of its own.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch

from gradproj.experiments.streams.pixel_maps import move_pixels

__all__ = ["Scenario", "Stream", "Task"]

Scenario = Literal["task", "class", "domain"]
Images = tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True, eq=False)
class Part:
    """The training or the test half of a task: which images, with which labels."""

    images: torch.Tensor
    rows: torch.Tensor | None
    labels: torch.Tensor
    scale: float
    pixels: torch.Tensor | None = None

    def floats(self, rows: slice = slice(None)) -> Images:
        """Return images as float32 in [0, 1], all or some, with their labels of the head."""
        x = self.images[rows] if self.rows is None else self.images[self.rows[rows]]
        # Convert first: torch moves floats four times as fast as bytes.
        # Copy, because images that are floats already must not change.
        x = x.to(torch.float32, copy=True).div_(self.scale)
        if self.pixels is not None:
            x = move_pixels(x, self.pixels)
        return x, self.labels[rows].clone()

    def batches(self, size: int) -> Iterator[Images]:
        """Iterate over batches, which fit into the cache when the whole part does not."""
        return (self.floats(slice(i, i + size)) for i in range(0, len(self), size))

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True, eq=False)
class Task:
    """One task of a stream.

    Attributes
    ----------
    index : int
        Place in the stream, from 0.
    classes : tuple of int
        The data set's own labels that this task holds.
    outputs : slice
        The outputs of the head that this task uses; labels of `train` and `test` lie in it.
    """

    index: int
    classes: tuple[int, ...]
    outputs: slice
    training: Part
    testing: Part

    def train(self) -> Images:
        """Training images, float32 in [0, 1] of shape (n, C, H, W), and their head labels."""
        return self.training.floats()

    def test(self) -> Images:
        """Test images and head labels, in the same form as `train`."""
        return self.testing.floats()


@dataclass(frozen=True, eq=False)
class Stream:
    """A sequence of tasks for one network.

    Attributes
    ----------
    name : str
        Name of the data set and of the builder.
    scenario : "task", "class" or "domain"
        "task": the task is known at test time, and only its outputs compete. "class": the task is
        unknown, and all outputs compete. "domain": all tasks use the same outputs.
    tasks : tuple of Task
    outputs : int
        Outputs that the head needs for the whole stream.
    input_shape : tuple of int
        Shape (C, H, W) of one image.
    """

    name: str
    scenario: Scenario
    tasks: tuple[Task, ...]
    outputs: int
    input_shape: tuple[int, int, int]
