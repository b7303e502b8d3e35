"""CIFAR-10 and CIFAR-100 in the publisher's binary version: label bytes, then 3072 pixel bytes.

The binary files need no unpickling, so they are what we fetch. If the data folder holds only the
pickled version (torchvision's), it is read through torchvision, which unpickles nothing that does
not have the publisher's checksum.
"""

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import torch

from gradproj.experiments.common.errors import DataError
from gradproj.experiments.data.dataset import Dataset
from gradproj.experiments.data.download import Download
from gradproj.experiments.data.files import read_checked
from gradproj.experiments.data.from_torchvision import load_torchvision
from gradproj.experiments.data.source import Source

__all__ = ["CIFAR10", "CIFAR100", "parse_records"]

_PIXELS = 3 * 32 * 32


def parse_records(data: bytes, label_bytes: int, path: Path) -> tuple[torch.Tensor, torch.Tensor]:
    """Split records into images (n, 3, 32, 32) and labels; the last label byte is the class.

    Examples
    --------
    >>> x, y = parse_records(bytes([7, 3]) + bytes(3072), 2, Path("train.bin"))
    >>> x.shape, y.tolist()
    (torch.Size([1, 3, 32, 32]), [3])
    """
    size = label_bytes + _PIXELS
    if len(data) % size:
        raise DataError(f"{path} is damaged: {len(data):,} bytes are not whole records of {size}")
    records = np.frombuffer(data, dtype=np.uint8).reshape(-1, size)
    x = records[:, label_bytes:].reshape(-1, 3, 32, 32).copy()
    return torch.from_numpy(x), torch.from_numpy(records[:, label_bytes - 1].astype(np.int64))


def _read(source: Source, root: Path) -> Dataset:
    classes = 100 if source.name == "cifar100" else 10
    if not (root / source.folder).exists():
        pickled = load_torchvision(f"CIFAR{classes}", root, download=False)
        return Dataset(
            source.name, pickled.train_x, pickled.train_y, pickled.test_x, pickled.test_y, classes
        )

    def records(names: Iterable[str]) -> tuple[torch.Tensor, torch.Tensor]:
        parts = []
        for name in names:
            path = root / source.folder / name
            data = read_checked(path, source.files[name], source.name)
            parts.append(parse_records(data, 2 if classes == 100 else 1, path))
        return torch.cat([x for x, _ in parts]), torch.cat([y for _, y in parts])

    *train, test = source.files
    return Dataset(source.name, *records(train), *records([test]), classes=classes)


CIFAR10 = Source(
    name="cifar10",
    about="50,000 + 10,000 photographs, 32×32 colour, 10 classes (for research)",
    folder="cifar-10-batches-bin",
    files={
        "data_batch_1.bin": "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
        "data_batch_2.bin": "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
        "data_batch_3.bin": "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
        "data_batch_4.bin": "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
        "data_batch_5.bin": "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
        "test_batch.bin": "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
    },
    downloads=(
        Download(
            ("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",),
            "c32a1d4ab5d03f1284b67883e8d87530",
        ),
    ),
    archive=True,
    read=_read,
    instead="cifar-10-batches-py",
)

CIFAR100 = Source(
    name="cifar100",
    about="50,000 + 10,000 photographs, 32×32 colour, 100 classes (for research)",
    folder="cifar-100-binary",
    files={
        "train.bin": "f31298fc616915fa142368359df1c4ca2ae984d6915ca468b998a5ec6aeebf29",
        "test.bin": "d8b1e6b7b3bee4020055f0699b111f60b1af1e262aeb93a0b659061746f8224a",
    },
    downloads=(
        Download(
            ("https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz",),
            "03b5dce01913d631647c71ecec9e9cb8",
        ),
    ),
    archive=True,
    read=_read,
    instead="cifar-100-python",
)
