"""Data sets of torchvision by class name, and pairs of objects."""

import numpy as np
import pytest
import torch
from PIL import Image

from gradproj.experiments.common.torchvision import import_torchvision
from gradproj.experiments.data import DataError, from_pair, load

RNG = np.random.default_rng(0)


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
