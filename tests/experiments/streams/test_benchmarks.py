"""Benchmarks by name: the published sizes, and options checked before data is touched."""

import numpy as np
import pytest
import torch

from gradproj.experiments.data import Dataset, from_pair
from gradproj.experiments.streams import benchmarks
from gradproj.experiments.streams.benchmarks import BENCHMARKS, build, check_options

SHAPES = {
    # name: (classes, training images per class, test images per class, image shape)
    "mnist": (10, 110, 4, (1, 28, 28)),
    "fashion-mnist": (10, 110, 4, (1, 28, 28)),
    "cifar10": (10, 1300, 4, (3, 2, 2)),
    "cifar100": (100, 500, 100, (3, 2, 2)),
    "tiny-imagenet": (200, 500, 50, (3, 2, 2)),
}


@pytest.fixture(autouse=True)
def synthetic(monkeypatch):
    """Data sets with the published numbers of classes and images, but few pixels."""
    real = benchmarks.load

    def load(name, root=None, **options):
        if name == "digits":
            return real(name, root, **options)
        classes, train, test, shape = SHAPES[name]
        parts = []
        for count in (train, test):
            y = torch.arange(classes).repeat(count)
            parts += [torch.zeros(len(y), *shape, dtype=torch.uint8), y]
        return Dataset(name, *parts, classes=classes)

    monkeypatch.setattr(benchmarks, "load", load)


@pytest.mark.parametrize(
    ("name", "scenario", "tasks", "classes", "outputs", "train", "test"),
    [
        ("mnist-permutations", "domain", 20, 10, 10, 1000, 40),
        ("mnist-rotations", "domain", 20, 10, 10, 1000, 40),
        ("split-mnist", "task", 5, 2, 10, 220, 8),
        ("split-cifar10", "task", 5, 2, 10, 2500, 8),
        ("split-cifar100", "task", 20, 5, 100, 2500, 500),
        ("split-tiny-imagenet", "task", 20, 10, 200, 2500, 500),
        ("permuted-fashion-mnist", "domain", 20, 10, 10, 1000, 40),
        ("rotated-fashion-mnist", "domain", 20, 10, 10, 1000, 40),
        ("split-fashion-mnist", "task", 5, 2, 10, 220, 8),
        ("class-cifar100", "class", 10, 10, 100, 5000, 1000),
        ("class-cifar100-mid", "class", 5, 4, 20, 2000, 400),
        ("permuted-digits", "domain", 10, 10, 10, 1000, 355),
        ("rotated-digits", "domain", 10, 10, 10, 1000, 355),
        ("split-digits", "task", 5, 2, 10, None, None),
        ("class-digits", "class", 5, 2, 10, None, None),
    ],
)
def test_published_protocols(name, scenario, tasks, classes, outputs, train, test):
    stream = build(name)
    assert (stream.name, stream.scenario, stream.outputs) == (name, scenario, outputs)
    assert len(stream.tasks) == tasks
    for t, task in enumerate(stream.tasks):
        assert len(task.classes) == classes
        assert train is None or len(task.training) == train
        assert test is None or len(task.testing) == test
        start = 0 if scenario == "domain" else t * classes
        assert task.outputs == slice(start, start + classes)


def test_every_benchmark_is_listed_in_the_test_above():
    [mark] = [m for m in test_published_protocols.pytestmark if m.name == "parametrize"]
    assert {row[0] for row in mark.args[1]} == set(BENCHMARKS)


def test_splits_are_in_natural_order_whatever_the_seed():
    for seed in (0, 1):
        stream = build("split-cifar100", seed=seed)
        assert stream.tasks[3].classes == (15, 16, 17, 18, 19)


def test_options_win_over_the_defaults():
    stream = build("split-cifar100", tasks=10, samples=20, class_order="icarl", scenario="class")
    assert [len(t.training) for t in stream.tasks] == [20] * 10
    assert stream.tasks[0].classes[:3] == (87, 0, 52)
    assert stream.scenario == "class"


def test_half_of_the_classes_first():
    stream = build("class-cifar100", tasks=6, first=50)
    assert [len(t.classes) for t in stream.tasks] == [50, 10, 10, 10, 10, 10]


def test_some_of_the_classes():
    stream = build("class-cifar100-mid")
    whole = build("class-cifar100")
    assert sum((t.classes for t in stream.tasks), ()) == whole.tasks[0].classes + (
        whole.tasks[1].classes
    )
    labels = torch.cat([task.train()[1] for task in stream.tasks])
    assert torch.equal(labels.unique(), torch.arange(20))
    with pytest.raises(ValueError, match="classes=11 is invalid: digits has 10 classes"):
        build("split-digits", classes=11)


@pytest.mark.parametrize("name", ["class-digits", "permuted-digits"])
def test_a_validation_split_leaves_the_test_images_alone(name):
    whole, held = build(name, samples=None), build(name, samples=None, validation=0.25, seed=3)
    for before, after in zip(whole.tasks, held.tasks, strict=True):
        trained, tested = after.train()[0].flatten(1), after.test()[0].flatten(1)
        assert len(trained) + len(tested) == len(before.training)
        assert len(tested) == pytest.approx(0.25 * len(before.training), rel=0.02)
        # The same pixels in any order: each image is one of the training images, once.
        found = torch.cat([trained, tested]).sum(1).sort().values
        torch.testing.assert_close(found, before.train()[0].flatten(1).sum(1).sort().values)
    with pytest.raises(ValueError, match=r"validation=1.5 is invalid: expected a number in"):
        build(name, validation=1.5)


def test_any_torchvision_class(monkeypatch):
    asked = {}

    def load(name, root, **options):
        asked.update(options, name=name, root=root)
        items = [(np.zeros((2, 2), np.uint8), i) for i in range(10)]
        return from_pair("svhn", items, items)

    monkeypatch.setattr(benchmarks, "load", load)
    stream = build("split:SVHN", root="here", tasks=5, download=False)
    assert asked == {
        "name": "torchvision:SVHN", "root": "here", "download": False,
    }  # fmt: skip
    assert (stream.name, len(stream.tasks)) == ("split-svhn", 5)
    assert build("permuted:SVHN", samples=5, tasks=2).name == "permuted-svhn"


def test_a_data_set_of_the_users_own():
    items = [(np.full((3, 3), i, np.uint8), i) for i in range(4)]
    mine = from_pair("mine", items, items)
    stream = build("split", dataset=mine, tasks=2)
    assert (stream.name, stream.input_shape) == ("split-mine", (1, 3, 3))


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("split-cifar", {}, r"benchmark 'split-cifar' is not known; did you mean 'split-cifar10"),
        ("split", {}, "benchmark 'split' is not known"),
        ("split:", {}, "benchmark 'split:' is not known"),
        ("cut:SVHN", {}, r"benchmark 'cut:SVHN' .* 'split:CLASS'"),
        ("split:SVHN", {}, "tasks is needed for split:SVHN"),
        ("split-digits", {"task": 5}, "'task' is not known; did you mean 'tasks'"),
        ("permuted-digits", {"class_order": "natural"}, "'class_order' is not known"),
        ("split-digits", {"tasks": "5"}, "tasks='5' must be a whole number"),
        ("split-digits", {"tasks": None}, "tasks=None must be a whole number"),
        ("split-digits", {"samples": 2.5}, "samples=2.5 must be a whole number"),
        ("split-digits", {"seed": True}, "seed=True must be a whole number"),
    ],
)
def test_wrong_names_and_options(name, options, message, monkeypatch):
    monkeypatch.setattr(benchmarks, "load", lambda *_, **__: pytest.fail("data was touched"))
    with pytest.raises(ValueError, match=message):
        check_options(name, options)
    with pytest.raises(ValueError, match=message):
        build(name, **options)


def test_too_few_images_for_the_protocol():
    with pytest.raises(ValueError, match=r"samples=6000: task 0 has 5000 .* from 1 to 5000"):
        build("split-tiny-imagenet", samples=6000)
