"""The form in which every loader returns a data set: labelled images, completely in memory."""

from dataclasses import dataclass, replace

import torch

__all__ = ["Dataset", "hold_out"]


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
        unseen = set(self.test_y.tolist()) - set(self.train_y.tolist())
        if len(self.train_y) and unseen:
            raise ValueError(
                f"test_y has images of class {min(unseen)}, but train_y has none; divide the "
                "images of each class among both, as gradproj.experiments.make_dataset does"
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


def hold_out(dataset: Dataset, share: float, seed: int = 0) -> Dataset:
    """Replace the test images by a share of the training images of each class.

    Settings that are chosen on the result have not seen the test images.

    Parameters
    ----------
    dataset : Dataset
    share : float
        Share of the training images to test on, above 0 and below 1. They are not trained on.
    seed : int
        Chooses the images.

    Examples
    --------
    >>> from gradproj.experiments.data import load
    >>> digits = load("digits")
    >>> held = hold_out(digits, 0.25)
    >>> len(digits.train_x), len(held.train_x), len(held.test_x)
    (1442, 1082, 360)
    """
    if not 0 < share < 1:
        raise ValueError(f"share={share!r} is invalid: expected a number above 0 and below 1")
    generator = torch.Generator().manual_seed(seed)
    held = torch.zeros(len(dataset.train_y), dtype=torch.bool)
    for label in range(dataset.classes):
        members = torch.nonzero(dataset.train_y == label).squeeze(1)
        if len(members) < 2:
            raise ValueError(
                f"{dataset.name} has {len(members)} training images of class {label}; a validation "
                "split needs at least 2 of each class"
            )
        count = min(max(round(share * len(members)), 1), len(members) - 1)
        held[members[torch.randperm(len(members), generator=generator)[:count]]] = True
    return replace(
        dataset,
        train_x=dataset.train_x[~held],
        train_y=dataset.train_y[~held],
        test_x=dataset.train_x[held],
        test_y=dataset.train_y[held],
    )
