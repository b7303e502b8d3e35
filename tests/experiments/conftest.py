"""Look-alikes of the published data sets in their publishers' layouts, and of finished runs."""

import dataclasses
import hashlib
import io
import struct

import numpy as np
import pytest
import torch
from PIL import Image
from support.reports import some_runs

from gradproj.experiments.data.cifar import CIFAR10, CIFAR100
from gradproj.experiments.data.download import Download
from gradproj.experiments.data.mnist import MNIST
from gradproj.experiments.data.tiny_imagenet import TINY_IMAGENET

RNG = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def one_thread():
    """Runs set it so, and leave it: the tests after them would depend on their order."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


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


@pytest.fixture
def tiny_files():
    """Content of each file of the Tiny ImageNet look-alike."""
    return dict(TINY_FILES)


@pytest.fixture
def offer(tmp_path):
    """A function that makes a download of some content, served from a local file."""

    def offered(name, content):
        path = tmp_path / "server" / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)
        return Download((path.as_uri(),), hashlib.md5(content).hexdigest())

    return offered


@pytest.fixture
def runs(tmp_path):
    """A folder of made-up runs, as reports find them."""
    some_runs(tmp_path / "runs")
    return tmp_path / "runs"


@pytest.fixture
def no_figures(monkeypatch):
    """Pages without figures, which take most of the time."""
    monkeypatch.setattr("gradproj.experiments.reports.figures.of_table.FIGURES", {})
