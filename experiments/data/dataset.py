"""The form in which every loader returns a data set: labelled images, completely in memory."""

from dataclasses import dataclass

import torch

__all__ = ["Dataset"]


@dataclass(frozen=True, eq=False)
class Dataset:
    """Training and test images with their labels.

    Use `gradproj.experiments.make_dataset` to make one from arrays, frames or torch data sets.

    Attributes
    ----------
    name : str
        Name of the data set in streams and results.
    train_x, test_x : uint8 or float32 tensors, shape (n, C, H, W)
        Images. Bytes stay bytes in memory and become floats one task at a time. A vector of d
        features is an image of shape (1, 1, d).
    train_y, test_y : int64 tensors, shape (n,)
        Labels in [0, classes).
    classes : int
        Number of classes.
    scale : float
        Networks see x / scale. For bytes it is the value of the brightest pixel.

    Examples
    --------
    >>> import torch
    >>> x, y = torch.zeros(4, 1, 2, 2, dtype=torch.uint8), torch.tensor([0, 1, 0, 1])
    >>> Dataset("tiny", x, y, x, y, classes=2, scale=255.0).shape
    (1, 2, 2)
    """

    name: str
    train_x: torch.Tensor
    train_y: torch.Tensor
    test_x: torch.Tensor
    test_y: torch.Tensor
    classes: int
    scale: float = 255.0

    def __post_init__(self) -> None:
        for part, x, y in (
            ("train", self.train_x, self.train_y),
            ("test", self.test_x, self.test_y),
        ):
            if x.dtype not in (torch.uint8, torch.float32) or x.ndim != 4:
                raise ValueError(
                    f"{part}_x is {x.dtype} of shape {tuple(x.shape)}; expected uint8 or float32 "
                    "images of shape (n, C, H, W). gradproj.experiments.make_dataset converts "
                    "other arrays"
                )
            if y.dtype != torch.int64 or y.shape != x.shape[:1]:
                raise ValueError(
                    f"{part}_y is {y.dtype} of shape {tuple(y.shape)}; expected one int64 label "
                    f"for each of the {len(x)} images"
                )
            if len(y) and not (int(y.min()) >= 0 and int(y.max()) < self.classes):
                raise ValueError(
                    f"{part}_y has labels from {int(y.min())} to {int(y.max())}; "
                    f"classes={self.classes} needs labels from 0 to {self.classes - 1}"
                )
        if self.train_x.shape[1:] != self.test_x.shape[1:]:
            raise ValueError(
                f"test_x has images of shape {tuple(self.test_x.shape[1:])}, but train_x has "
                f"images of shape {self.shape}; both need the same shape"
            )
        if self.train_x.dtype != self.test_x.dtype:
            raise ValueError(
                f"test_x is {self.test_x.dtype}, but train_x is {self.train_x.dtype}; both need "
                "the same dtype"
            )

    @property
    def shape(self) -> tuple[int, int, int]:
        """Shape (C, H, W) of one image."""
        c, h, w = self.train_x.shape[1:]
        return int(c), int(h), int(w)
