"""Data sets: readers, checksums, the data folder, and errors that say what to do."""

import argparse
import dataclasses
import gzip
import hashlib
import io
import os
import struct
import tarfile
import zipfile

import numpy as np
import pytest
import torch
from PIL import Image

from gradproj.experiments import data
from gradproj.experiments.data import DataError, Dataset, command, from_pair, load
from gradproj.experiments.data.cifar import CIFAR10, CIFAR100, parse_records
from gradproj.experiments.data.download import Download
from gradproj.experiments.data.files import data_dir
from gradproj.experiments.data.mnist import FASHION_MNIST, MNIST, parse_idx
from gradproj.experiments.data.tiny_imagenet import TINY_IMAGENET
from gradproj.experiments.torchvision_shim import import_torchvision

RNG = np.random.default_rng(0)


def idx(values):
    head = struct.pack(f">BBBB{values.ndim}I", 0, 0, 8, values.ndim, *values.shape)
    return head + values.astype(np.uint8).tobytes()


def sha256(content):
    return hashlib.sha256(content).hexdigest()


@pytest.fixture
def mnist(tmp_path):
    """A small MNIST look-alike: (source with its checksums, data folder, arrays)."""
    arrays = {
        "train-images-idx3-ubyte": RNG.integers(0, 256, (12, 28, 28)),
        "train-labels-idx1-ubyte": np.arange(12) % 10,
        "t10k-images-idx3-ubyte": RNG.integers(0, 256, (10, 28, 28)),
        "t10k-labels-idx1-ubyte": np.arange(10)[::-1],
    }
    folder = tmp_path / MNIST.folder
    folder.mkdir(parents=True)
    for name, values in arrays.items():
        (folder / name).write_bytes(idx(values))
    files = {name: sha256(idx(values)) for name, values in arrays.items()}
    return dataclasses.replace(MNIST, files=files, downloads=()), tmp_path, arrays


@pytest.fixture
def cifar(tmp_path):
    """Small look-alikes of both CIFARs: name → (source, data folder, records)."""

    def make(source, label_bytes, classes):
        folder = tmp_path / source.folder
        folder.mkdir()
        records = {}
        for name in source.files:
            labels = np.stack([np.arange(classes) % 20, np.arange(classes)], 1)[:, -label_bytes:]
            pixels = RNG.integers(0, 256, (classes, 3072))
            records[name] = np.concatenate([labels, pixels], 1).astype(np.uint8)
            (folder / name).write_bytes(records[name].tobytes())
        files = {name: sha256(r.tobytes()) for name, r in records.items()}
        return dataclasses.replace(source, files=files), tmp_path, records

    return {"cifar10": make(CIFAR10, 1, 10), "cifar100": make(CIFAR100, 2, 100)}


def jpeg(colour, mode="RGB", side=64):
    out = io.BytesIO()
    Image.new(mode, (side, side), colour).save(out, "JPEG", quality=95)
    return out.getvalue()


TINY_FILES = {
    # Not sorted, as the publisher's list is not.
    "wnids.txt": b"n03\nn01\nn02\n",
    "val/val_annotations.txt": b"val_0.JPEG\tn02\t0\t0\t9\t9\nval_1.JPEG\tn01\t0\t0\t9\t9\n",
    "val/images/val_0.JPEG": jpeg((0, 200, 0)),
    "val/images/val_1.JPEG": jpeg((200, 0, 0)),
    "train/n01/images/n01_0.JPEG": jpeg((250, 0, 0)),
    "train/n01/images/n01_1.JPEG": jpeg((240, 0, 0)),
    "train/n02/images/n02_0.JPEG": jpeg((0, 250, 0)),
    "train/n03/images/n03_0.JPEG": jpeg(128, mode="L"),
}


@pytest.fixture
def tiny(tmp_path):
    for name, content in TINY_FILES.items():
        path = tmp_path / TINY_IMAGENET.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return tmp_path


# Readers ------------------------------------------------------------------------------------


def test_digits_are_split_once_and_for_all():
    digits = load("digits")
    assert digits.shape == (1, 8, 8)
    assert digits.scale == 16.0
    assert len(digits.train_x) + len(digits.test_x) == 1797
    share = torch.bincount(digits.test_y) / (
        torch.bincount(digits.test_y) + torch.bincount(digits.train_y)
    )
    assert ((share > 0.19) & (share <= 0.2)).all()
    assert torch.equal(digits.train_x, load("digits").train_x)
    assert int(digits.train_x.max()) == 16


@pytest.mark.parametrize("packed", [False, True])
def test_mnist_is_read_raw_or_gzipped(mnist, packed):
    source, root, arrays = mnist
    if packed:
        for path in list((root / source.folder).iterdir()):
            path.with_name(path.name + ".gz").write_bytes(gzip.compress(path.read_bytes()))
            path.unlink()
    found = source.load(root, download=False)
    assert found.name == "mnist"
    assert np.array_equal(found.train_x[:, 0].numpy(), arrays["train-images-idx3-ubyte"])
    assert found.test_y.tolist() == arrays["t10k-labels-idx1-ubyte"].tolist()
    assert (found.classes, found.scale) == (10, 255.0)


def test_mnist_equals_torchvisions_reading(mnist):
    source, root, _ = mnist
    reference = import_torchvision("datasets").MNIST(root, train=True)
    found = source.load(root, download=False)
    assert torch.equal(found.train_x[:, 0], reference.data)
    assert torch.equal(found.train_y, reference.targets)


@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
def test_cifar_binary_records(cifar, name):
    source, root, records = cifar[name]
    found = source.load(root, download=False)
    *train, test = records.values()
    labels = 2 if name == "cifar100" else 1
    stacked = np.concatenate(train)
    assert np.array_equal(found.train_x.flatten(1).numpy(), stacked[:, labels:])
    assert found.train_y.tolist() == stacked[:, labels - 1].tolist(), "the fine label, not coarse"
    assert np.array_equal(found.test_x.flatten(1).numpy(), test[:, labels:])
    assert found.classes == len(test)


@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
def test_a_pickled_cifar_is_read_through_torchvision_alone(name, tmp_path, monkeypatch):
    asked = []

    def stand_in(cls, root, download):
        asked.append((cls, root, download))
        x, y = torch.zeros(1, 3, 32, 32, dtype=torch.uint8), torch.tensor([3])
        return Dataset("x", x, y, x, y, classes=4)

    monkeypatch.setattr("gradproj.experiments.data.cifar.load_torchvision", stand_in)
    source = data.SOURCES[name]
    (tmp_path / source.instead).mkdir()
    found = source.load(tmp_path)
    assert asked == [(name.upper(), tmp_path, False)]
    assert (found.name, found.classes) == (name, 100 if name == "cifar100" else 10)


def test_a_forged_pickle_is_not_unpickled(tmp_path):
    folder = tmp_path / CIFAR10.instead
    folder.mkdir()
    for name in [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch", "batches.meta"]:
        (folder / name).write_bytes(b"cos\nsystem\n(S'touch " + bytes(tmp_path / "ran") + b"'\ntR.")
    with pytest.raises(DataError, match="torchvision cannot provide CIFAR10"):
        CIFAR10.load(tmp_path)
    assert not (tmp_path / "ran").exists()


def test_tiny_imagenet_tree(tiny):
    found = TINY_IMAGENET.load(tiny, download=False)
    assert (found.classes, found.shape) == (3, (3, 64, 64))
    assert found.train_y.tolist() == [0, 0, 1, 2], "labels in the order of the WordNet ids"
    assert found.test_y.tolist() == [1, 0]
    means = found.train_x.float().mean(dim=(2, 3)).round()
    expected = torch.tensor([[250.0, 0, 0], [240, 0, 0], [0, 250, 0], [128, 128, 128]])
    assert (means - expected).abs().max() <= 3


def test_tiny_imagenet_is_decoded_once(tiny, monkeypatch):
    first = TINY_IMAGENET.load(tiny, download=False)
    monkeypatch.setattr("gradproj.experiments.data.tiny_imagenet._decode", pytest.fail)
    again = TINY_IMAGENET.load(tiny, download=False)
    assert torch.equal(first.train_x, again.train_x)
    again.train_x.zero_()
    assert TINY_IMAGENET.load(tiny, download=False).train_x.any(), "the cache is never written to"


def test_tiny_imagenet_is_decoded_again_when_the_tree_changes(tiny):
    TINY_IMAGENET.load(tiny, download=False)
    (tiny / TINY_IMAGENET.folder / "train/n03/images/n03_1.JPEG").write_bytes(jpeg((1, 2, 3)))
    assert len(TINY_IMAGENET.load(tiny, download=False).train_x) == 5


def test_a_read_only_tree_is_cached_with_the_user(tiny, tmp_path_factory, monkeypatch):
    cache = tmp_path_factory.mktemp("cache")
    monkeypatch.setattr("gradproj.experiments.data.tiny_imagenet.user_cache", lambda: cache)
    monkeypatch.setattr("os.access", lambda *_: False)
    TINY_IMAGENET.load(tiny, download=False)
    assert not (tiny / "decoded").exists()
    assert any((cache / "decoded").iterdir())


# Damage -------------------------------------------------------------------------------------


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


@pytest.mark.parametrize("content", [b"", b"not gzip", gzip.compress(bytes(5000))[:-12]])
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
        idx(np.ones(3))[:-1],
    ],
)
def test_bytes_that_are_no_idx_file(content, tmp_path):
    with pytest.raises(DataError, match="labels is damaged"):
        parse_idx(content, tmp_path / "labels")


def test_bytes_that_are_no_records(tmp_path):
    with pytest.raises(DataError, match="no whole records of 3073"):
        parse_records(bytes(3074), 1, tmp_path / "train.bin")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (
            "train/n01/images/n01_0.JPEG",
            TINY_FILES["train/n01/images/n01_0.JPEG"][:400],
            "n01_0.JPEG is",
        ),
        ("train/n01/images/n01_0.JPEG", b"", "n01_0.JPEG is damaged"),
        (
            "train/n01/images/n01_0.JPEG",
            jpeg(0, "L", side=32),
            "n01_0.JPEG is 32×32; expected 64×64",
        ),
        ("train/n02/images/n02_0.JPEG", None, "images of 2 of 3 classes"),
        ("val/images/val_1.JPEG", None, "names val_1.JPEG of class n01"),
        ("val/val_annotations.txt", b"val_0.JPEG\tn99\t0\n", "val_0.JPEG of class n99"),
    ],
)
def test_a_damaged_tiny_imagenet_is_named_and_not_cached(tiny, name, content, message):
    path = tiny / TINY_IMAGENET.folder / name
    path.unlink() if content is None else path.write_bytes(content)
    with pytest.raises(DataError, match=message):
        TINY_IMAGENET.load(tiny, download=False)
    decoded = tiny / "decoded"
    assert not decoded.exists() or [p for p in decoded.iterdir() if p.suffix != ".lock"] == []


# Fetching -----------------------------------------------------------------------------------


def offered(folder, name, content):
    """A download from a local file."""
    folder.mkdir(exist_ok=True)
    (folder / name).write_bytes(content)
    return Download(((folder / name).as_uri(),), hashlib.md5(content).hexdigest())


def test_an_archive_is_fetched_and_unpacked(cifar, tmp_path):
    source, root, _ = cifar["cifar10"]
    with io.BytesIO() as out:
        with tarfile.open(fileobj=out, mode="w:gz") as pack:
            pack.add(root / source.folder, source.folder)
        archive = out.getvalue()
    item = offered(tmp_path / "server", "cifar-10-binary.tar.gz", archive)
    fresh = tmp_path / "fresh"
    source = dataclasses.replace(source, downloads=(item,))
    assert torch.equal(source.load(fresh).train_x, source.load(root).train_x)


def test_tiny_imagenet_is_fetched_as_a_zip(tmp_path):
    with io.BytesIO() as out:
        with zipfile.ZipFile(out, "w") as pack:
            for name, content in TINY_FILES.items():
                pack.writestr(f"{TINY_IMAGENET.folder}/{name}", content)
        item = offered(tmp_path / "server", "tiny-imagenet-200.zip", out.getvalue())
    source = dataclasses.replace(TINY_IMAGENET, downloads=(item,))
    assert len(source.load(tmp_path / "fresh").train_x) == 4


def test_files_are_fetched_one_by_one(mnist, tmp_path):
    source, root, _ = mnist
    content = {name: (root / source.folder / name).read_bytes() for name in source.files}
    items = tuple(
        offered(tmp_path / "server", f"{name}.gz", gzip.compress(raw))
        for name, raw in content.items()
    )
    source = dataclasses.replace(source, downloads=items)
    assert len(source.load(tmp_path / "fresh").train_x) == 12


def test_an_incomplete_folder_is_not_overwritten(cifar):
    source, root, _ = cifar["cifar10"]
    (root / source.folder / "test_batch.bin").unlink()
    with pytest.raises(DataError, match="is there but not complete; delete the folder"):
        source.load(root)


@pytest.mark.parametrize("source", data.SOURCES.values(), ids=data.SOURCES)
def test_without_data_and_download_the_error_says_what_to_do(source, tmp_path):
    with pytest.raises(DataError, match=f"is not in .*data fetch {source.name}.*--data-dir"):
        load(source.name, tmp_path, download=False)


@pytest.mark.parametrize("source", data.SOURCES.values(), ids=data.SOURCES)
def test_without_data_and_network_the_error_says_what_to_do(source, tmp_path, monkeypatch):
    def no_network(*_, **__):
        raise OSError("Network is unreachable")

    monkeypatch.setattr("gradproj.experiments.data.download.urlopen", no_network)
    with pytest.raises(DataError, match=r"cannot download .*\n.*unreachable\n(.*\n)?.*by hand"):
        load(source.name, tmp_path)


def test_a_data_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(DataError, match=r"cannot write mnist in .*file"):
        load("mnist", tmp_path / "file" / "data")


def test_the_publishers_checksums_are_complete():
    for source in (MNIST, FASHION_MNIST, CIFAR10, CIFAR100):
        assert all(len(digest) == 64 for digest in source.files.values())
    for source in data.SOURCES.values():
        assert all(len(item.md5) == 32 for item in source.downloads)


# The data folder and names ------------------------------------------------------------------


def test_the_data_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("GRADPROJ_DATA", str(tmp_path / "env"))
    assert data_dir(tmp_path / "given") == tmp_path / "given"
    assert data_dir() == tmp_path / "env"
    monkeypatch.delenv("GRADPROJ_DATA")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("sys.platform", "linux")
    assert data_dir() == tmp_path / "cache" / "gradproj"
    monkeypatch.setattr("sys.platform", "win32")
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path / "local"))
    assert data_dir() == tmp_path / "local" / "gradproj"


def test_unknown_names():
    with pytest.raises(ValueError, match=r"data set 'cifar-100' .* did you mean 'cifar100'"):
        load("cifar-100")
    with pytest.raises(ValueError, match="'KMINST' is not known; did you mean 'KMNIST'"):
        load("torchvision:KMINST")
    with pytest.raises(TypeError, match="size is an option of torchvision's data sets alone"):
        load("digits", size=3)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"train_x": torch.zeros(2, 1, 2, 2)}, "train_x is torch.float32"),
        ({"test_x": torch.zeros(2, 2, 2, dtype=torch.uint8)}, r"test_x is .* of shape \(2, 2, 2\)"),
        ({"train_y": torch.tensor([0])}, "train_y .* one int64 label for each of the 2 images"),
        ({"train_y": torch.tensor([0, 5])}, "train_y holds labels 0 to 5; classes=2"),
        ({"test_x": torch.zeros(2, 1, 3, 3, dtype=torch.uint8)}, "test_x has images of shape"),
    ],
)
def test_a_data_set_is_checked(change, message):
    x, y = torch.zeros(2, 1, 2, 2, dtype=torch.uint8), torch.tensor([0, 1])
    good = {"train_x": x, "train_y": y, "test_x": x, "test_y": y}
    with pytest.raises(ValueError, match=message):
        Dataset("bad", **{**good, **change}, classes=2)


# torchvision-style data sets ----------------------------------------------------------------


def test_a_torchvision_class_by_name(mnist):
    source, root, arrays = mnist
    (root / "KMNIST").mkdir()
    (root / source.folder).rename(root / "KMNIST" / "raw")
    found = load("torchvision:KMNIST", root)
    assert found.name == "kmnist"
    assert np.array_equal(found.train_x[:, 0].numpy(), arrays["train-images-idx3-ubyte"])
    assert found.test_y.tolist() == arrays["t10k-labels-idx1-ubyte"].tolist()


def test_a_class_with_named_splits(tmp_path, monkeypatch):
    class Shapes:
        def __init__(self, root, split="train", extra=0):
            assert root == tmp_path
            self.items = [(Image.new("RGB", (4, 6), (i, 0, 0)), i + extra) for i in range(3)]
            self.split = split

        def __len__(self):
            return 3 if self.split == "train" else 2

        def __getitem__(self, i):
            return self.items[i]

    datasets = import_torchvision("datasets")
    monkeypatch.setattr(datasets, "SVHN", Shapes)
    found = load("torchvision:SVHN", tmp_path, extra=7)
    assert (len(found.train_x), len(found.test_x), found.shape) == (3, 2, (3, 6, 4))
    assert found.train_y.tolist() == [0, 1, 2], "labels are renumbered from 0"
    assert load("torchvision:SVHN", tmp_path, size=5).shape == (3, 5, 5)


def test_a_torchvision_class_that_is_not_there(tmp_path):
    with pytest.raises(DataError, match=r"torchvision cannot provide KMNIST.*--data-dir"):
        load("torchvision:KMNIST", tmp_path, download=False)
    with pytest.raises(ValueError, match="'FakeData' has no training and test part"):
        load("torchvision:FakeData", tmp_path)


def test_pairs_of_arrays_tensors_and_pictures_agree():
    pixels = RNG.integers(0, 256, (4, 5, 6, 3), dtype=np.uint8)
    forms = (
        [(image, i) for i, image in enumerate(pixels)],
        [(Image.fromarray(image), i) for i, image in enumerate(pixels)],
        [(torch.from_numpy(image).permute(2, 0, 1), i) for i, image in enumerate(pixels)],
    )
    for form in forms:
        found = from_pair("toy", form, form)
        assert np.array_equal(found.train_x.permute(0, 2, 3, 1).numpy(), pixels)
        assert found.classes == 4
    grey = [(torch.full((1, 3, 3), 9, dtype=torch.uint8), 0)]
    assert from_pair("grey", grey, grey).shape == (1, 3, 3)


@pytest.mark.parametrize(
    ("items", "message"),
    [
        ([], "train holds no images"),
        (
            [(np.zeros((2, 2), np.uint8), 0), (np.zeros((3, 2), np.uint8), 0)],
            "size: the train",
        ),
        ([(np.zeros((2, 2)), 0)], "an image is float64 .* without transforms"),
    ],
)
def test_pairs_that_do_not_fit(items, message):
    with pytest.raises(ValueError, match=message):
        from_pair("toy", items, items)


# The command --------------------------------------------------------------------------------


def run(*words):
    parser = argparse.ArgumentParser()
    command.configure(parser)
    return command.execute(parser.parse_args(words))


def test_command_list_and_where(mnist, capsys):
    _, root, _ = mnist
    assert run("--data-dir", str(root)) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"data folder: {root}"
    assert any("mnist" in line and " there " in line for line in lines)
    assert any("cifar100" in line and " missing " in line for line in lines)
    assert run("where", "--data-dir", str(root)) == 0
    assert capsys.readouterr().out.strip() == str(root)


def test_command_verify(mnist, capsys, monkeypatch):
    source, root, _ = mnist
    monkeypatch.setitem(data.SOURCES, "mnist", source)
    assert run("verify", "--data-dir", str(root)) == 0
    out = capsys.readouterr().out
    assert "mnist: 12 + 10 images, 10 classes" in out
    assert "cifar10: missing" in out
    (root / source.folder / "train-labels-idx1-ubyte").write_bytes(b"?")
    assert run("verify", "mnist", "--data-dir", str(root)) == 1
    assert "train-labels-idx1-ubyte is damaged" in capsys.readouterr().err
    assert run("verify", "cifar10", "--data-dir", str(root)) == 1
    assert "cifar10 is not in" in capsys.readouterr().err


def test_command_fetch(mnist, tmp_path, capsys, monkeypatch):
    source, root, _ = mnist
    items = tuple(
        offered(tmp_path / "server", name, (root / source.folder / name).read_bytes())
        for name in source.files
    )
    monkeypatch.setitem(data.SOURCES, "mnist", dataclasses.replace(source, downloads=items))
    fresh = tmp_path / "fresh"
    assert run("fetch", "mnist", "--data-dir", str(fresh)) == 0
    assert "mnist: 12 + 10 images" in capsys.readouterr().out
    with pytest.raises(ValueError, match="names: say what to fetch"):
        run("fetch")
    with pytest.raises(ValueError, match="did you mean 'mnist'"):
        run("fetch", "mnits")


# Real data ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "train", "test"),
    [("mnist", 60_000, 10_000), ("cifar10", 50_000, 10_000), ("cifar100", 50_000, 10_000)],
)
def test_real_data(name, train, test):
    if "GRADPROJ_DATA" not in os.environ:
        pytest.skip("GRADPROJ_DATA does not name a folder with the data")
    if data.SOURCES[name].missing(data_dir()):
        pytest.skip(f"{name} is not in GRADPROJ_DATA")
    found = load(name, download=False)
    assert (len(found.train_x), len(found.test_x)) == (train, test)
