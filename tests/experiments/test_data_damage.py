"""Damaged files are named, with the cure, and never become a data set."""

import gzip
import io

import pytest
from PIL import Image

from gradproj.experiments.data import DataError
from gradproj.experiments.data.cifar import parse_records
from gradproj.experiments.data.mnist import parse_idx
from gradproj.experiments.data.tiny_imagenet import TINY_IMAGENET


def test_a_damaged_file_is_named(mnist):
    source, root, _ = mnist
    path = root / source.folder / "t10k-labels-idx1-ubyte"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(bytes(content))
    with pytest.raises(DataError, match=r"t10k-labels-idx1-ubyte is damaged.*data fetch mnist"):
        source.load(root, download=False)


def test_half_a_file_is_named(cifar):
    source, root, _ = cifar["cifar100"]
    path = root / source.folder / "train.bin"
    path.write_bytes(path.read_bytes()[:5000])
    with pytest.raises(DataError, match=r"train.bin is damaged: 5,000 bytes"):
        source.load(root, download=False)


@pytest.mark.parametrize(
    "content",
    [b"", b"not gzip", gzip.compress(bytes(5000), mtime=0)[:-12]],
    ids=["empty", "other", "cut off"],
)
def test_a_damaged_gzip_is_named(mnist, content):
    source, root, _ = mnist
    path = root / source.folder / "train-images-idx3-ubyte"
    path.unlink()
    path.with_name(path.name + ".gz").write_bytes(content)
    with pytest.raises(DataError, match=r"train-images-idx3-ubyte.gz is damaged"):
        source.load(root, download=False)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\0\0\x08",
        b"\0\0\x0d\x01\0\0\0\x01a",
        b"\0\0\x08\x02\0\0",
        b"\0\0\x08\x01\0\0\0\x03ab",
    ],
)
def test_bytes_that_are_no_idx_file(content, tmp_path):
    with pytest.raises(DataError, match="labels is damaged"):
        parse_idx(content, tmp_path / "labels")


def test_bytes_that_are_no_records(tmp_path):
    with pytest.raises(DataError, match="no whole records of 3073"):
        parse_records(bytes(3074), 1, tmp_path / "train.bin")


def small(_):
    out = io.BytesIO()
    Image.new("L", (32, 32)).save(out, "JPEG")
    return out.getvalue()


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("train/n01/images/n01_0.JPEG", lambda old: old[:400], "n01_0.JPEG is damaged"),
        ("train/n01/images/n01_0.JPEG", lambda _: b"", "n01_0.JPEG is damaged"),
        ("train/n01/images/n01_0.JPEG", small, "n01_0.JPEG is 32×32; expected 64×64"),
        ("train/n02/images/n02_0.JPEG", None, "images of 2 of 3 classes"),
        ("val/images/val_1.JPEG", None, "names val_1.JPEG of class n01"),
        ("val/val_annotations.txt", lambda _: b"val_0.JPEG\tn99\t0\n", "of class n99"),
    ],
)
def test_a_damaged_tiny_imagenet_is_named_and_not_cached(tiny, name, change, message):
    path = tiny / TINY_IMAGENET.folder / name
    if change is None:
        path.unlink()
    else:
        path.write_bytes(change(path.read_bytes()))
    with pytest.raises(DataError, match=message):
        TINY_IMAGENET.load(tiny, download=False)
    decoded = tiny / "decoded"
    assert not decoded.exists() or [p for p in decoded.iterdir() if p.suffix != ".lock"] == []
