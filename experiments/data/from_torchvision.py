"""Any torchvision-style data set: by class name, or as a pair of objects."""

import inspect
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from gradproj.experiments.common.errors import DataError
from gradproj.experiments.common.registry import nearest
from gradproj.experiments.common.torchvision import import_torchvision
from gradproj.experiments.data.dataset import Dataset

__all__ = ["from_pair", "load_torchvision"]


Pixels = NDArray[np.uint8]


class Labelled(Protocol):
    """A map-style data set: item i is (image, label)."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> tuple[Any, Any]: ...


def load_torchvision(
    name: str, root: Path, download: bool = True, size: int | None = None, **options: Any
) -> Dataset:
    """Load a data set class of torchvision by name, downloading it as torchvision does.

    Parameters
    ----------
    name : str
        A class of `torchvision.datasets` with a training and a test part: "KMNIST", "SVHN", …
    root : path
        torchvision's `root`.
    download : bool
        Whether torchvision may download it.
    size : int, optional
        Side to which images are resized, for data sets whose images differ in size.
    **options
        Further arguments of the class, such as ``split="letters"`` of EMNIST.
    """
    datasets = import_torchvision("datasets")
    if name not in datasets.__all__:
        raise ValueError(nearest(name, datasets.__all__, "data set class of torchvision"))
    maker = getattr(datasets, name)
    accepted = inspect.signature(maker).parameters
    if "download" in accepted:
        options["download"] = download
    train, test = _parts(name, accepted)
    try:
        pair = maker(root, **train, **options), maker(root, **test, **options)
    except (RuntimeError, OSError) as error:
        raise DataError(
            f"torchvision cannot provide {name} in {root}: {error}; check the connection, or name "
            "the folder that has it with --data-dir or GRADPROJ_DATA"
        ) from error
    return from_pair(name.lower(), *pair, size=size)


def from_pair(name: str, train: Labelled, test: Labelled, size: int | None = None) -> Dataset:
    """Convert a pair of torchvision-style data sets, untransformed, to a Dataset.

    Parameters
    ----------
    name : str
        What to call it.
    train, test : map-style data sets
        Items are (image, label); images are PIL images, uint8 arrays (H, W[, C]) or uint8 tensors
        (C, H, W). Labels are renumbered 0, 1, … in ascending order if they are not so already.
    size : int, optional
        Side to which images are resized.

    Examples
    --------
    >>> images = [(np.full((4, 4), i, np.uint8), i + 5) for i in range(3)]
    >>> data = from_pair("toy", images, images, size=2)
    >>> data.shape, data.train_y.tolist(), data.classes
    ((1, 2, 2), [0, 1, 2], 3)
    """
    train_x, train_labels = _collect("train", train, size)
    test_x, test_labels = _collect("test", test, size)
    values = sorted(set(train_labels) | set(test_labels))
    number = {value: i for i, value in enumerate(values)}
    train_y = torch.tensor([number[v] for v in train_labels])
    test_y = torch.tensor([number[v] for v in test_labels])
    return Dataset(name, train_x, train_y, test_x, test_y, classes=len(values))


def _parts(name: str, accepted: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """How the class is asked for its training and its test part."""
    if "train" in accepted:
        return {"train": True}, {"train": False}
    if "split" in accepted:
        return {"split": "train"}, {"split": "test"}
    raise ValueError(
        f"dataset={name!r} has no training and test part of its own; "
        "make two data sets and pass them to from_pair"
    )


def _collect(part: str, items: Labelled, size: int | None) -> tuple[torch.Tensor, Sequence[int]]:
    images: list[Pixels] = []
    labels = []
    for i in range(len(items)):
        image, label = items[i]
        pixels = _pixels(image, size)
        if images and pixels.shape != images[0].shape:
            raise ValueError(
                f"size: the {part} images differ in shape ({images[0].shape} and {pixels.shape}); "
                "give the side to which all shall be resized"
            )
        images.append(pixels)
        labels.append(int(label))
    if not images:
        raise ValueError(f"{part} holds no images")
    return torch.from_numpy(np.stack(images)), labels


def _pixels(image: Any, size: int | None) -> Pixels:
    """One image as uint8 (C, H, W)."""
    from PIL import Image

    if isinstance(image, torch.Tensor):
        image = np.asarray(image).transpose(1, 2, 0).squeeze()
    if size is not None:
        picture = image if isinstance(image, Image.Image) else Image.fromarray(image)
        image = picture.resize((size, size), Image.Resampling.BILINEAR)
    if isinstance(image, Image.Image) and image.mode not in ("L", "RGB"):
        image = image.convert("RGB")
    pixels = np.asarray(image)
    if pixels.dtype != np.uint8 or pixels.ndim not in (2, 3):
        raise ValueError(
            f"an image is {pixels.dtype} of shape {pixels.shape}; pass the data set without "
            "transforms, so that its images are bytes"
        )
    return pixels[None] if pixels.ndim == 2 else np.ascontiguousarray(pixels.transpose(2, 0, 1))
