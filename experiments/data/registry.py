"""All data sets by name."""

from pathlib import Path
from typing import Any

from gradproj.experiments.common.registry import lookup
from gradproj.experiments.data.cifar import CIFAR10, CIFAR100
from gradproj.experiments.data.dataset import Dataset
from gradproj.experiments.data.digits import load_digits
from gradproj.experiments.data.files import data_dir
from gradproj.experiments.data.from_torchvision import load_torchvision
from gradproj.experiments.data.mnist import FASHION_MNIST, MNIST
from gradproj.experiments.data.source import Source
from gradproj.experiments.data.tiny_imagenet import TINY_IMAGENET

__all__ = ["SOURCES", "find_source", "load"]

SOURCES: dict[str, Source] = {
    source.name: source for source in (MNIST, FASHION_MNIST, CIFAR10, CIFAR100, TINY_IMAGENET)
}


def load(
    name: str, root: str | Path | None = None, *, download: bool = True, **options: Any
) -> Dataset:
    """Load a data set by name.

    Parameters
    ----------
    name : str
        "digits" (embedded), a key of `SOURCES`, or "torchvision:CLASS" for a data set class of
        torchvision.
    root : path, optional
        The data folder; else GRADPROJ_DATA, else the user's cache.
    download : bool
        Whether a data set that is not there may be downloaded.
    **options
        For torchvision's: `size`, and arguments of the class.

    Raises
    ------
    DataError
        The data set is not there and cannot be had, or is damaged.

    Examples
    --------
    >>> load("digits").classes
    10
    """
    kind, _, cls = name.partition(":")
    if kind == "torchvision":
        return load_torchvision(cls, data_dir(root), download, **options)
    if options:
        raise TypeError(f"{next(iter(options))} is an option of torchvision's data sets alone")
    if name == "digits":
        return load_digits()
    return find_source(name).load(data_dir(root), download)


def find_source(name: str) -> Source:
    """Return a downloadable data set; the error for an unknown name suggests the nearest one."""
    return lookup(name, SOURCES, "data set", also=["digits"])
