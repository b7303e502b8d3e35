"""Conversion of arrays, tensors, data frames and torch data sets to checked NumPy arrays."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

__all__ = ["Array", "Layout", "collect_items", "first_few", "read_labels", "read_numbers",
           "to_images"]  # fmt: skip

Array = NDArray[Any]
Layout = Literal["NCHW", "NHWC"]

# Grey, grey with alpha, RGB and RGBA: a dimension of this length is probably that of the channels.
_CHANNELS = (1, 2, 3, 4)


def collect_items(name: str, items: Any) -> tuple[Any, Any]:
    """Collect the samples and labels of a torch data set."""
    if not hasattr(items, "__getitem__") or not hasattr(items, "__len__") or _is_array(items):
        raise TypeError(
            f"{name} is a {type(items).__name__} without labels; pass y, or a torch Dataset with "
            "a length and items (sample, label)"
        )
    samples: list[Array] = []
    labels: list[Array] = []
    for i in range(len(items)):
        item = items[i]
        if not isinstance(item, (tuple, list)) or len(item) != 2:
            raise TypeError(
                f"item {i} of {name} is a {type(item).__name__}; expected a pair (sample, label)"
            )
        sample = _host(item[0])
        if samples and sample.shape != samples[0].shape:
            raise ValueError(
                f"{name} has samples of shape {samples[0].shape} and {sample.shape}; resize them "
                "to one shape, for example with gradproj.experiments.data.from_pair(size=…)"
            )
        samples.append(sample)
        labels.append(_host(item[1]))
    if not samples:
        raise ValueError(f"{name} is empty")
    return np.stack(samples), np.stack(labels)


def read_numbers(name: str, x: Any) -> Array:
    """Return the samples as uint8 or floats; raise for anything that is not a finite number."""
    if isinstance(x, str | Path):
        raise TypeError(
            f"{name} is a {type(x).__name__}; read the file first, for example with pandas.read_csv"
        )
    if isinstance(x, Mapping) or hasattr(x, "toarray"):
        hint = "x.toarray()" if hasattr(x, "toarray") else "one array"
        raise TypeError(f"{name} is a {type(x).__name__}; pass {hint}")
    if hasattr(x, "columns") and hasattr(x, "dtypes"):
        types = zip(x.columns, x.dtypes, strict=True)
        if words := [str(c) for c, kind in types if getattr(kind, "kind", "f") not in "buif"]:
            raise ValueError(
                f"{name} has columns that are not numbers: {first_few(words)}; encode or drop them"
            )
    try:
        found = _host(x)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name} cannot be read as one array: {error}") from error
    if found.dtype.kind not in "buif":
        raise ValueError(
            f"{name} has the dtype {found.dtype}; expected integers from 0 to 255 or floats"
        )
    if found.dtype.kind == "f":
        if bad := int(np.size(found) - np.isfinite(found).sum()):
            raise ValueError(
                f"{name} has {bad:,} values that are NaN or infinite; remove or replace them"
            )
        return found
    # Vectors of integers are measurements, which may have any range. Images of integers are bytes.
    if found.dtype == np.uint8 or not found.size:
        return found.astype(np.uint8)
    if found.dtype.kind == "b" or found.ndim == 2:
        return found.astype(np.float32)
    if not (found.min() >= 0 and found.max() <= 255):
        raise ValueError(
            f"{name} has integers from {found.min()} to {found.max()}; expected images with "
            "integers from 0 to 255, or floats"
        )
    return found.astype(np.uint8)


def to_images(name: str, x: Array, layout: Layout | None) -> Array:
    """Bring samples to the shape (n, C, H, W)."""
    if layout not in (None, "NCHW", "NHWC"):
        raise ValueError(f"layout={layout!r} is invalid: expected 'NCHW', 'NHWC' or None")
    if x.ndim == 2:
        return x[:, None, None, :]
    if x.ndim == 3:
        return x[:, None]
    if x.ndim != 4:
        raise ValueError(
            f"{name} has shape {x.shape}; expected vectors (n, d) or images (n, H, W), "
            "(n, C, H, W) or (n, H, W, C)"
        )
    if layout is None:
        layout = _guess_layout(name, x.shape)
    return x if layout == "NCHW" else x.transpose(0, 3, 1, 2)


def read_labels(name: str, y: Any) -> Array:
    """Return one label per sample: whole numbers, booleans or strings."""
    labels = _host(y)
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.ndim != 1:
        raise ValueError(
            f"{name} has shape {labels.shape}; expected one label per sample, shape (n,). For "
            "one-hot labels pass y.argmax(axis=1)"
        )
    if labels.dtype.kind == "O":
        if any(label is None or label != label for label in labels):
            raise ValueError(f"{name} has missing labels; every sample needs one")
        labels = np.array([str(label) for label in labels])
    if labels.dtype.kind == "f":
        wrong = labels[~(labels == np.round(labels))]
        if len(wrong):
            raise ValueError(
                f"{name} has the label {wrong[0]:g}; expected class labels, which are whole "
                "numbers or strings. Regression is not supported"
            )
    elif labels.dtype.kind not in "buiUS":
        raise ValueError(
            f"{name} has the dtype {labels.dtype}; expected whole numbers, booleans or strings"
        )
    return labels


def first_few(values: Any) -> str:
    """List up to five values."""
    shown = ", ".join(str(value) for value in values[:5])
    return shown if len(values) <= 5 else f"{shown}, … ({len(values)} in all)"


def _is_array(value: Any) -> bool:
    return isinstance(value, torch.Tensor) or hasattr(value, "columns") or hasattr(value, "dtype")


def _host(value: Any) -> Array:
    """Return a NumPy array of any array, tensor, frame, series or nested list."""
    if isinstance(value, torch.Tensor):
        return value.detach().cpu().numpy()
    if hasattr(value, "to_numpy"):
        return np.asarray(value.to_numpy())
    return np.asarray(value)


def _guess_layout(name: str, shape: tuple[int, ...]) -> Layout:
    first, last = shape[1] in _CHANNELS, shape[3] in _CHANNELS
    if first == last:  # Images are mostly square.
        first, last = shape[2] == shape[3], shape[1] == shape[2]
    if first == last:
        raise ValueError(
            f"{name} has shape {shape}, which does not tell where the channels are; pass "
            "layout='NCHW' or layout='NHWC'"
        )
    return "NCHW" if first else "NHWC"
