"""MNIST and Fashion-MNIST: four idx files each, raw or gzipped, in torchvision's folders."""

import math
import struct
from pathlib import Path

import numpy as np
import torch

from gradproj.experiments.common.errors import DataError
from gradproj.experiments.data.dataset import Dataset
from gradproj.experiments.data.download import Download
from gradproj.experiments.data.files import read_checked
from gradproj.experiments.data.source import Source

__all__ = ["FASHION_MNIST", "MNIST", "parse_idx"]

_TRAIN_X, _TRAIN_Y = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"
_TEST_X, _TEST_Y = "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"


def parse_idx(data: bytes, path: Path) -> torch.Tensor:
    r"""Read an idx file of bytes: magic number, sizes, then the values.

    Examples
    --------
    >>> parse_idx(b"\0\0\x08\x01" + b"\0\0\0\x03" + b"abc", Path("labels")).tolist()
    [97, 98, 99]
    """
    if len(data) < 4 or data[:3] != b"\0\0\x08":
        raise DataError(f"{path} is damaged: it does not start as an idx file of bytes")
    dims = data[3]
    start = 4 + 4 * dims
    shape = struct.unpack(f">{dims}I", data[4:start]) if len(data) >= start else (-1,)
    if len(data) - start != math.prod(shape):
        raise DataError(f"{path} is damaged: {len(data):,} bytes do not fit its sizes {shape}")
    values = np.frombuffer(data, dtype=np.uint8, offset=start).reshape(shape)
    return torch.from_numpy(values.copy())


def _read(source: Source, root: Path) -> Dataset:
    def values(name: str) -> torch.Tensor:
        path = root / source.folder / name
        return parse_idx(read_checked(path, source.files[name], source.name), path)

    train_x, test_x = values(_TRAIN_X).unsqueeze(1), values(_TEST_X).unsqueeze(1)
    train_y, test_y = values(_TRAIN_Y).long(), values(_TEST_Y).long()
    return Dataset(source.name, train_x, train_y, test_x, test_y, classes=10)


def _source(
    name: str,
    about: str,
    folder: str,
    mirrors: tuple[str, ...],
    packed: tuple[str, ...],
    raw: tuple[str, ...],
) -> Source:
    """Make a source from the md5 sums of its gzipped files and the sha256 sums of its raw ones."""
    names = (_TRAIN_X, _TRAIN_Y, _TEST_X, _TEST_Y)
    return Source(
        name=name,
        about=about,
        folder=f"{folder}/raw",
        files=dict(zip(names, raw, strict=True)),
        downloads=tuple(
            Download(tuple(f"{mirror}{n}.gz" for mirror in mirrors), digest)
            for n, digest in zip(names, packed, strict=True)
        ),
        archive=False,
        read=_read,
    )


MNIST = _source(
    "mnist",
    "60,000 + 10,000 handwritten digits, 28×28 grey, 10 classes (CC BY-SA 3.0)",
    "MNIST",
    (
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        "http://yann.lecun.com/exdb/mnist/",
    ),
    (
        "f68b3c2dcbeaaa9fbdd348bbdeb94873",
        "d53e105ee54ea40749a09fcbcd1e9432",
        "9fb629c4189551a2d022fa330f9573f3",
        "ec29112dd5afa0611ce80d1b7f02629c",
    ),
    (
        "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
        "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
        "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
        "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    ),
)

FASHION_MNIST = _source(
    "fashion-mnist",
    "60,000 + 10,000 pieces of clothing, 28×28 grey, 10 classes (MIT)",
    "FashionMNIST",
    ("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",),
    (
        "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
        "25c81989df183df01b3e8a0aad5dffbe",
        "bef4ecab320f06d8554ea6380940ec79",
        "bb300cfdad3c16e7a12a480ee83cd310",
    ),
    (
        "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
        "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
        "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
        "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
    ),
)
