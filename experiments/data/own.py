"""Data sets made from a user's arrays, data frames or torch data sets."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from gradproj.experiments.data.arrays import (
    Array,
    Layout,
    collect_items,
    first_few,
    read_labels,
    read_numbers,
    to_images,
)
from gradproj.experiments.data.dataset import Dataset

__all__ = ["make_dataset"]

# Plain SGD diverges on inputs of this size, which are mostly bytes stored as floats.
_LARGEST_FLOAT = 100.0


def make_dataset(
    x: Any,
    y: Any = None,
    *,
    test: Any = None,
    test_share: float = 0.2,
    name: str = "own",
    layout: Layout | None = None,
    scale: float | None = None,
    seed: int = 0,
) -> Dataset:
    """Make a Dataset from arrays, a data frame or a torch data set.

    Parameters
    ----------
    x : array, tensor, data frame or torch Dataset
        Training samples: images (n, H, W), (n, C, H, W) or (n, H, W, C), or vectors (n, d);
        integers from 0 to 255 or floats. A data frame holds one vector per row. A torch Dataset
        has items (sample, label).
    y : array, tensor, series or column name, optional
        One label per sample: integers, whole floats, booleans or strings. They are numbered
        0, 1, … in ascending order. For a data frame it may be the name of a column of `x`. Leave
        it out for a torch Dataset.
    test : pair (x, y), data frame or torch Dataset, optional
        Test samples in the same form. Without it, a share of each class of `x` is set aside.
    test_share : float
        Share of each class that is set aside as test samples if there is no `test`.
    name : str
        Name of the data set in results.
    layout : "NCHW" or "NHWC", optional
        Order of the dimensions of images, needed only where the shape leaves it open.
    scale : float, optional
        Networks see x / scale. The default is 255 for bytes and 1 for floats.
    seed : int
        Chooses the test samples that are set aside. It is independent of the seed of a run.

    Returns
    -------
    Dataset
        For `gradproj.experiments.split`, `permuted` and `rotated`, which make streams of tasks.

    Raises
    ------
    ValueError, TypeError
        The data cannot be used; the message says what was found and what is needed.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> x, y = rng.random((100, 20)), np.repeat(["cat", "dog"], 50)
    >>> data = make_dataset(x, y, name="animals")
    >>> data.shape, data.classes, len(data.train_x), len(data.test_x)
    ((1, 1, 20), 2, 80, 20)
    """
    train_x, train_labels = _part("x", "y", x, y, layout)
    if test is None:
        held_out = _held_out(train_labels, test_share, seed)
        test_x, test_labels = train_x[held_out], train_labels[held_out]
        train_x, train_labels = train_x[~held_out], train_labels[~held_out]
    else:
        test_x, test_labels = _part("test x", "test y", *_pair(test, y), layout)
    values = np.unique(train_labels)
    unknown = np.setdiff1d(test_labels, values)
    if len(unknown):
        raise ValueError(
            f"test y has labels that do not occur in y: {first_few(unknown)}; every class needs "
            "training samples"
        )
    if (train_x.dtype == np.uint8) != (test_x.dtype == np.uint8):
        raise ValueError(
            f"x has the dtype {train_x.dtype}, but test x has {test_x.dtype}; both must be bytes "
            "or both floats"
        )
    kind = np.uint8 if train_x.dtype == np.uint8 else np.float32
    if scale is None:
        scale = 255.0 if kind is np.uint8 else 1.0
        if kind is np.float32:
            _check_size(train_x)
    elif not 0 < scale < float("inf"):
        raise ValueError(f"scale={scale} is invalid: expected a positive number")
    return Dataset(
        name,
        torch.from_numpy(np.ascontiguousarray(train_x, kind)),
        torch.from_numpy(np.searchsorted(values, train_labels).astype(np.int64)),
        torch.from_numpy(np.ascontiguousarray(test_x, kind)),
        torch.from_numpy(np.searchsorted(values, test_labels).astype(np.int64)),
        classes=len(values),
        scale=float(scale),
    )


def _pair(test: Any, y: Any) -> tuple[Any, Any]:
    """Return the test samples and their labels, or None if the samples carry them."""
    if isinstance(test, (tuple, list)):
        if len(test) != 2:
            raise TypeError(f"test has {len(test)} parts; expected the pair (x, y)")
        return test[0], test[1]
    return test, y if isinstance(y, str) else None


def _part(x_name: str, y_name: str, x: Any, y: Any, layout: Layout | None) -> tuple[Array, Array]:
    """Return samples of shape (n, C, H, W) and their labels, as the user numbers them."""
    if isinstance(y, str):
        x, y = _split_frame(x_name, x, y)
    if y is None:
        x, y = collect_items(x_name, x)
    samples = to_images(x_name, read_numbers(x_name, x), layout)
    labels = read_labels(y_name, y)
    if not len(samples):
        raise ValueError(f"{x_name} is empty")
    if len(samples) != len(labels):
        raise ValueError(
            f"{x_name} has {len(samples)} samples, but {y_name} has {len(labels)} labels; "
            "expected one label per sample"
        )
    return samples, labels


def _split_frame(name: str, frame: Any, column: str) -> tuple[Any, Any]:
    if not hasattr(frame, "columns"):
        raise TypeError(
            f"y={column!r} names a column, but {name} is a {type(frame).__name__}; pass a data "
            "frame as x, or the labels as y"
        )
    if column not in frame.columns:
        raise ValueError(
            f"y={column!r} is not a column of {name}, which has {first_few(list(frame.columns))}"
        )
    return frame[[each for each in frame.columns if each != column]], frame[column]


def _held_out(labels: Array, share: float, seed: int) -> NDArray[np.bool_]:
    """Choose the test samples: the same share of every class, at least one."""
    if not 0 < share < 1:
        raise ValueError(f"test_share={share} is invalid: expected a number above 0 and below 1")
    generator = np.random.default_rng(seed)
    chosen = np.zeros(len(labels), dtype=bool)
    for value in np.unique(labels):
        members = np.flatnonzero(labels == value)
        if len(members) < 2:
            raise ValueError(
                f"y has one sample of the label {value}; without test, every class needs at least "
                "two samples"
            )
        count = min(max(round(share * len(members)), 1), len(members) - 1)
        chosen[generator.permutation(members)[:count]] = True
    return chosen


def _check_size(x: Array) -> None:
    low, high = float(x.min()), float(x.max())
    if max(-low, high) > _LARGEST_FLOAT:
        raise ValueError(
            f"x has values from {low:g} to {high:g}, on which training mostly diverges; pass "
            "scale=255 for pixels, standardize the features, or pass scale=1 to keep the values"
        )
