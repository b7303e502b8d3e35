"""Data sets: readers, names, the data folder."""

import gzip

import numpy as np
import pytest
import torch

from gradproj.experiments import data
from gradproj.experiments.common.torchvision import import_torchvision
from gradproj.experiments.data import DataError, Dataset, load
from gradproj.experiments.data.cifar import CIFAR10
from gradproj.experiments.data.files import data_dir
from gradproj.experiments.data.tiny_imagenet import TINY_IMAGENET


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


def test_digits_are_those_that_scikit_learn_loads(monkeypatch):
    quick = load("digits")
    monkeypatch.setattr("gradproj.experiments.data.digits.find_spec", lambda _: None)
    through_sklearn = load("digits")
    for name in ("train_x", "train_y", "test_x", "test_y"):
        assert torch.equal(getattr(quick, name), getattr(through_sklearn, name))


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


def test_tiny_imagenet_is_decoded_again_when_the_tree_changes(tiny, tiny_files):
    TINY_IMAGENET.load(tiny, download=False)
    more = tiny / TINY_IMAGENET.folder / "train/n03/images/n03_1.JPEG"
    more.write_bytes(tiny_files["val/images/val_0.JPEG"])
    assert len(TINY_IMAGENET.load(tiny, download=False).train_x) == 5


def test_a_read_only_tree_is_cached_with_the_user(tiny, tmp_path_factory, monkeypatch):
    cache = tmp_path_factory.mktemp("cache")
    monkeypatch.setattr("gradproj.experiments.data.tiny_imagenet.user_cache", lambda: cache)
    monkeypatch.setattr("os.access", lambda *_: False)
    TINY_IMAGENET.load(tiny, download=False)
    assert not (tiny / "decoded").exists()
    assert any((cache / "decoded").iterdir())


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
        ({"train_x": torch.zeros(2, 1, 2, 2).double()}, "train_x is torch.float64 of shape"),
        ({"train_x": torch.zeros(2, 1, 2, 2)}, "both need the same dtype"),
        ({"test_x": torch.zeros(2, 2, 2, dtype=torch.uint8)}, r"test_x is .* of shape \(2, 2, 2\)"),
        ({"train_y": torch.tensor([0])}, "train_y .* one int64 label for each of the 2 images"),
        ({"train_y": torch.tensor([0, 5])}, "train_y has labels from 0 to 5; classes=2"),
        ({"test_x": torch.zeros(2, 1, 3, 3, dtype=torch.uint8)}, "test_x has images of shape"),
        ({"train_y": torch.tensor([0, 0])}, "test_y has images of class 1, but train_y has none"),
    ],
)
def test_a_data_set_is_checked(change, message):
    x, y = torch.zeros(2, 1, 2, 2, dtype=torch.uint8), torch.tensor([0, 1])
    good = {"train_x": x, "train_y": y, "test_x": x, "test_y": y}
    with pytest.raises(ValueError, match=message):
        Dataset("bad", **{**good, **change}, classes=2)
