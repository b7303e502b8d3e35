"""Damaged files are named, with the cure, and never become a data set."""

import gzip
import io
import random
import zipfile

import pytest
import torch
from PIL import Image

from gradproj.experiments.data import DataError
from gradproj.experiments.data.archive import extract
from gradproj.experiments.data.checksums import SUMS
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
    with pytest.raises(DataError, match="not whole records of 3073"):
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


def flipped(content, draw):
    changed = bytearray(content)
    changed[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
    return bytes(changed)


@pytest.fixture
def unpacked(tiny_files, tmp_path):
    """Tiny ImageNet as it is unpacked from the publisher's archive."""
    archive = tmp_path / "tiny.zip"
    with zipfile.ZipFile(archive, "w") as pack:
        for name, content in tiny_files.items():
            pack.writestr(f"{TINY_IMAGENET.folder}/{name}", content)
    extract(archive, tmp_path / "data", TINY_IMAGENET.folder)
    return tmp_path / "data"


def test_a_flipped_bit_in_any_unpacked_image_is_noticed(unpacked):
    tree, draw = unpacked / TINY_IMAGENET.folder, random.Random(0)
    images = sorted(tree.rglob("*.JPEG"))
    assert len(images) == 6
    for path in [*images, tree / SUMS] * 5:
        whole = path.read_bytes()
        path.write_bytes(flipped(whole, draw))
        with pytest.raises(DataError, match=rf"{path.name} is damaged: its checksum is not in"):
            TINY_IMAGENET.load(unpacked, download=False)
        path.write_bytes(whole)
    assert len(TINY_IMAGENET.load(unpacked, download=False).train_x) == 4


def test_a_flipped_bit_in_the_decoded_images_has_them_decoded_again(tiny, capsys):
    whole = TINY_IMAGENET.load(tiny, download=False)
    (cache,) = [p for p in (tiny / "decoded").iterdir() if p.is_dir()]
    draw = random.Random(0)
    for path in [p for p in sorted(cache.iterdir()) for _ in range(4)]:
        path.write_bytes(flipped(path.read_bytes(), draw))
        again = TINY_IMAGENET.load(tiny, download=False)
        assert f"{path} is damaged; decoding the images again" in capsys.readouterr().err
        assert torch.equal(again.train_x, whole.train_x)
        assert torch.equal(again.train_y, whole.train_y)
        assert torch.equal(again.test_x, whole.test_x)
    TINY_IMAGENET.load(tiny, download=False)
    assert capsys.readouterr().err == ""


def test_a_cache_of_an_older_version_is_made_again(tiny):
    TINY_IMAGENET.load(tiny, download=False)
    (sums,) = (tiny / "decoded").glob(f"*/{SUMS}")
    sums.unlink()
    assert len(TINY_IMAGENET.load(tiny, download=False).train_x) == 4
    assert sums.exists()
