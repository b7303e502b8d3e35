"""The published data sets themselves, where GRADPROJ_DATA names a folder that has them."""

import pytest
import torch
from support.data import need

from gradproj.experiments.data import load
from gradproj.experiments.streams.benchmarks import BENCHMARKS, build


@pytest.mark.parametrize(
    ("name", "train", "test", "shape"),
    [
        ("mnist", 60_000, 10_000, (1, 28, 28)),
        ("fashion-mnist", 60_000, 10_000, (1, 28, 28)),
        ("cifar10", 50_000, 10_000, (3, 32, 32)),
        ("cifar100", 50_000, 10_000, (3, 32, 32)),
    ],
)
def test_whole_data_sets(name, train, test, shape):
    need(name)
    found = load(name, download=False)
    assert (len(found.train_x), len(found.test_x), found.shape) == (train, test, shape)
    if name != "mnist":
        assert len(set(torch.bincount(found.train_y).tolist())) == 1


def test_mnist_permutations_on_real_data():
    need("mnist")
    stream = build("mnist-permutations", download=False)
    assert len(stream.tasks) == 20
    for task in stream.tasks:
        x, y = task.test()
        assert x.shape == (10_000, 1, 28, 28)
        assert len(y) == 10_000
    x, y = stream.tasks[19].train()
    assert x.shape == (1000, 1, 28, 28)
    assert set(y.tolist()) == set(range(10))


@pytest.mark.parametrize(
    ("name", "tasks", "classes", "train", "test"),
    [
        ("split-cifar10", 5, 2, 2500, 2000),
        ("split-cifar100", 20, 5, 2500, 500),
        ("class-cifar100", 10, 10, 5000, 1000),
    ],
)
def test_split_cifar_on_real_data(name, tasks, classes, train, test):
    need(BENCHMARKS[name].dataset)
    stream = build(name, download=False)
    assert len(stream.tasks) == tasks
    for task in stream.tasks:
        assert len(task.classes) == classes
        x, y = task.train()
        assert x.shape == (train, 3, 32, 32)
        counts = torch.bincount(y - task.outputs.start, minlength=classes)
        assert len(counts) == classes
        if train == 500 * classes:
            assert counts.tolist() == [500] * classes
        _, y = task.test()
        assert torch.bincount(y - task.outputs.start).tolist() == [test // classes] * classes
    if name != "class-cifar100":
        assert stream.tasks[1].classes == tuple(range(classes, 2 * classes))


def test_split_tiny_imagenet_on_real_data():
    need("tiny-imagenet")
    stream = build("split-tiny-imagenet", download=False, samples=None)
    sizes = {(len(t.training), len(t.testing), len(t.classes)) for t in stream.tasks}
    assert len(stream.tasks) == 20
    # The whole data set, or a slice of 30 + 10 images per class.
    assert sizes in ({(5000, 500, 10)}, {(300, 100, 10)})
    assert stream.tasks[0].train()[0].shape[1:] == (3, 64, 64)
