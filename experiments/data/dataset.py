"""What every loader returns: a labelled image data set, whole and in memory."""

from dataclasses import dataclass

import torch

__all__ = ["Dataset"]


@dataclass(frozen=True, eq=False)
class Dataset:
    """Training and test images with their labels.

    Attributes
    ----------
    name : str
        What the data set is called in streams and results.
    train_x, test_x : uint8 tensors, shape (n, C, H, W)
        Images; they stay bytes, and are turned into floats a task at a time.
    train_y, test_y : int64 tensors, shape (n,)
        Labels in [0, classes).
    classes : int
        Number of classes.
    scale : float
        The value of a full-bright pixel: x / scale lies in [0, 1].

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
            if x.dtype != torch.uint8 or x.ndim != 4:
                raise ValueError(
                    f"{part}_x is {x.dtype} of shape {tuple(x.shape)}; "
                    "give uint8 images of shape (n, C, H, W)"
                )
            if y.dtype != torch.int64 or y.shape != x.shape[:1]:
                raise ValueError(
                    f"{part}_y is {y.dtype} of shape {tuple(y.shape)}; "
                    f"give one int64 label for each of the {len(x)} images"
                )
            if len(y) and not (int(y.min()) >= 0 and int(y.max()) < self.classes):
                raise ValueError(
                    f"{part}_y holds labels {int(y.min())} to {int(y.max())}; "
                    f"classes={self.classes} needs labels 0 to {self.classes - 1}"
                )
        if self.train_x.shape[1:] != self.test_x.shape[1:]:
            raise ValueError(
                f"test_x has images of shape {tuple(self.test_x.shape[1:])}; train_x has "
                f"{self.shape}: give both the same shape"
            )

    @property
    def shape(self) -> tuple[int, int, int]:
        """Shape (C, H, W) of one image."""
        c, h, w = self.train_x.shape[1:]
        return int(c), int(h), int(w)
