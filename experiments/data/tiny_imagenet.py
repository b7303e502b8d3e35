"""Tiny ImageNet from the publisher's tree; decoded once, then memory-mapped.

The images are checked against the checksums that were written when they were unpacked, and the
decoded arrays, 1.4 GB, against their own each time they are loaded.

Labels follow the alphabetical order of the WordNet ids. The publisher's test images have no
labels, so the validation images are the test set.
"""

import hashlib
import os
import shutil
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from filelock import FileLock

from gradproj.experiments.common.errors import DataError
from gradproj.experiments.common.files import file_digest
from gradproj.experiments.data.checksums import SUMS, damaged_file, write_sums
from gradproj.experiments.data.dataset import Dataset
from gradproj.experiments.data.download import Download
from gradproj.experiments.data.files import user_cache, writing
from gradproj.experiments.data.source import Source

__all__ = ["TINY_IMAGENET"]

_SIDE = 64
_ARRAYS = ("train_x", "train_y", "test_x", "test_y")
Labelled = list[tuple[Path, int]]


def _read(source: Source, root: Path) -> Dataset:
    tree = root / source.folder
    train, test, classes = _list_images(tree)
    cache = _cache_folder(root, tree, train + test)
    if not cache.exists() or damaged_file(cache):
        with writing("the decoded images", cache.parent):
            cache.parent.mkdir(parents=True, exist_ok=True)
            lock = FileLock(cache.with_name(cache.name + ".lock"))
            lock.acquire()
        try:
            _make_cache(tree, train, test, cache)
        finally:
            lock.release()
    # Copy-on-write: the pages are shared by all processes, and torch gets memory it may write to.
    train_x, train_y, test_x, test_y = (
        torch.from_numpy(np.load(cache / f"{name}.npy", mmap_mode="c")) for name in _ARRAYS
    )
    return Dataset(source.name, train_x, train_y, test_x, test_y, classes=classes)


def _list_images(tree: Path) -> tuple[Labelled, Labelled, int]:
    """Training and validation images with their labels, in a fixed order."""
    names = sorted((tree / "wnids.txt").read_text().split())
    label = {name: i for i, name in enumerate(names)}
    train = [
        (path, label[name])
        for name in names
        for path in sorted((tree / "train" / name / "images").glob("*.JPEG"))
    ]
    test = []
    for line in (tree / "val" / "val_annotations.txt").read_text().splitlines():
        file, name = line.split("\t")[:2]
        path = tree / "val" / "images" / file
        if name not in label or not path.exists():
            raise DataError(
                f"{tree} is damaged: val_annotations.txt names {file} of class {name}, which is "
                "not there; delete the folder and run `gradproj data fetch tiny-imagenet`"
            )
        test.append((path, label[name]))
    found = len({y for _, y in train})
    if found != len(names) or not test:
        raise DataError(
            f"{tree} is damaged: images of {found} of {len(names)} classes and {len(test)} "
            "validation images are there; delete the folder and run "
            "`gradproj data fetch tiny-imagenet`"
        )
    return train, test, len(names)


def _cache_folder(root: Path, tree: Path, images: Labelled) -> Path:
    """Name the cache after the images' names, sizes and labels, so that it never outlives them."""
    digest = hashlib.sha256()
    for path, label in images:
        digest.update(f"{path.relative_to(tree)} {path.stat().st_size} {label}\n".encode())
    base = root if os.access(root, os.W_OK) else user_cache()
    return base / "decoded" / f"{tree.name}-{digest.hexdigest()[:16]}"


def _make_cache(tree: Path, train: Labelled, test: Labelled, cache: Path) -> None:
    """Decode the images, unless another process has done so."""
    if cache.exists():
        damaged = damaged_file(cache)
        if not damaged:
            return
        print(f"{cache / damaged} is damaged; decoding the images again", file=sys.stderr)
        with writing("the decoded images", cache.parent):
            shutil.rmtree(cache)
    _check_tree(tree)
    _decode(train, test, cache)


def _check_tree(tree: Path) -> None:
    """Raise for an image that is not as it was unpacked; a tree from elsewhere has no list."""
    if (tree / SUMS).exists() and (damaged := damaged_file(tree)):
        raise DataError(
            f"{tree / damaged} is damaged: its checksum is not in {SUMS}; delete the folder and "
            "run `gradproj data fetch tiny-imagenet`"
        )


def _decode(train: Labelled, test: Labelled, cache: Path) -> None:
    with writing("the decoded images", cache.parent):
        scratch = Path(tempfile.mkdtemp(prefix=f".{cache.name}.", dir=cache.parent))
        try:
            for part, images in (("train", train), ("test", test)):
                shape = (len(images), 3, _SIDE, _SIDE)
                x = np.lib.format.open_memmap(
                    scratch / f"{part}_x.npy", mode="w+", dtype=np.uint8, shape=shape
                )
                for row, (path, _) in enumerate(images):
                    x[row] = _pixels(path)
                x.flush()
                np.save(scratch / f"{part}_y.npy", np.array([y for _, y in images], np.int64))
            write_sums(scratch, {f"{n}.npy": file_digest(scratch / f"{n}.npy") for n in _ARRAYS})
            scratch.rename(cache)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)


def _pixels(path: Path) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    from PIL import Image

    try:
        with Image.open(path) as image:
            pixels = np.asarray(image.convert("RGB"))
    except (OSError, SyntaxError) as error:
        raise DataError(
            f"{path} is damaged: {error}; delete the folder and run "
            "`gradproj data fetch tiny-imagenet`"
        ) from error
    if pixels.shape != (_SIDE, _SIDE, 3):
        raise DataError(f"{path} is {pixels.shape[1]}×{pixels.shape[0]}; expected {_SIDE}×{_SIDE}")
    return pixels.transpose(2, 0, 1)


TINY_IMAGENET = Source(
    name="tiny-imagenet",
    about="100,000 + 10,000 photographs, 64×64 colour, 200 classes (for research)",
    folder="tiny-imagenet-200",
    files={"wnids.txt": "", "val/val_annotations.txt": ""},
    downloads=(
        Download(
            ("http://cs231n.stanford.edu/tiny-imagenet-200.zip",),
            "90528d7ca1a48142e341f4ef8d21d0de",
        ),
    ),
    archive=True,
    read=_read,
)
