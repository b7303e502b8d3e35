"""Streams: which images, which classes, which outputs, from one seed."""

import numpy as np
import pytest
import torch
from PIL import Image

from gradproj.experiments.data import Dataset, load
from gradproj.experiments.streams import permuted, rotated, split
from gradproj.experiments.streams.orders import class_order
from gradproj.experiments.streams.pixel_maps import move_pixels, rotation_map


def synthetic(classes=10, train=30, test=6, shape=(1, 6, 5), scale=255.0):
    """Images that tell their own class and number: pixel 0 is the label, pixel 1 the row."""
    generator = torch.Generator().manual_seed(5)

    def part(per_class):
        y = torch.arange(classes).repeat(per_class)
        x = torch.randint(1, 250, (len(y), *shape), generator=generator, dtype=torch.uint8)
        x.flatten(1)[:, 0] = y.to(torch.uint8)
        x.flatten(1)[:, 1] = (torch.arange(len(y)) // classes).to(torch.uint8)
        return x, y

    return Dataset("toy", *part(train), *part(test), classes=classes, scale=scale)


def identities(x, scale=255.0):
    """(label, row) of each image of an unpermuted synthetic stream."""
    return {tuple(p) for p in (x.flatten(1)[:, :2] * scale).round().int().tolist()}


# Permutations and rotations -----------------------------------------------------------------


def test_permuted_tasks_move_the_pixels_of_train_and_test_alike():
    data = synthetic()
    stream = permuted(data, tasks=4, samples=20, seed=3)
    assert (stream.scenario, stream.outputs, stream.input_shape) == ("domain", 10, (1, 6, 5))
    for task in stream.tasks:
        assert task.classes == tuple(range(10))
        assert task.outputs == slice(0, 10)
        order = task.training.pixels
        assert sorted(order.tolist()) == list(range(30))
        assert order.tolist() != list(range(30)), "the first task is permuted too"
        x, y = task.test()
        assert x.dtype == torch.float32
        assert y.dtype == torch.int64
        assert torch.equal(x.flatten(1), data.test_x.flatten(1)[:, order].float() / 255)
        assert torch.equal(y, data.test_y)
        x, y = task.train()
        assert x.shape == (20, 1, 6, 5)
        rows = task.training.rows
        assert len(set(rows.tolist())) == 20
        assert torch.equal(x.flatten(1), data.train_x[rows].flatten(1)[:, order].float() / 255)
        assert torch.equal(y, data.train_y[rows])


def test_tasks_draw_permutations_and_samples_independently():
    tasks = permuted(synthetic(), tasks=5, samples=20, seed=0).tasks
    assert len({tuple(t.training.pixels.tolist()) for t in tasks}) == 5
    assert len({tuple(t.training.rows.tolist()) for t in tasks}) == 5


def test_a_permuted_task_does_not_depend_on_the_number_of_tasks():
    few, many = (permuted(synthetic(), tasks=n, samples=20, seed=7).tasks[1] for n in (2, 6))
    assert torch.equal(few.train()[0], many.train()[0])


def test_colour_pixels_move_together():
    data = synthetic(shape=(3, 4, 4))
    task = permuted(data, tasks=1, samples=None).tasks[0]
    x, _ = task.test()
    for channel in range(3):
        expected = data.test_x[:, channel].flatten(1)[:, task.testing.pixels].float() / 255
        assert torch.equal(x[:, channel].flatten(1), expected)


@pytest.mark.parametrize("angle", [0.0, 3.7, 45.0, 90.0, 123.4, 179.9])
@pytest.mark.parametrize("shape", [(28, 28), (6, 9)])
def test_rotation_is_pillows(angle, shape):
    image = np.random.default_rng(0).integers(1, 256, shape, dtype=np.uint8)
    expected = np.asarray(Image.fromarray(image).rotate(angle))
    moved = move_pixels(torch.from_numpy(image)[None, None], rotation_map(*shape, angle))
    assert np.array_equal(moved[0, 0].numpy(), expected)


def test_angles_lie_in_their_tasks_sector(monkeypatch):
    angles = []
    monkeypatch.setattr(
        "gradproj.experiments.streams.builders.rotation_map",
        lambda h, w, angle: angles.append(angle) or rotation_map(h, w, angle),
    )
    rotated(synthetic(), tasks=20, samples=10, seed=0)
    assert all(9 * t <= angle < 9 * (t + 1) for t, angle in enumerate(angles))
    first = list(angles)
    angles.clear()
    rotated(synthetic(), tasks=20, samples=10, seed=1)
    assert all(a != b for a, b in zip(angles, first, strict=True))


# Splits -------------------------------------------------------------------------------------


def test_split_deals_the_classes_out_in_order():
    data = synthetic()
    stream = split(data, tasks=5)
    assert (stream.scenario, stream.outputs) == ("task", 10)
    assert [t.classes for t in stream.tasks] == [(0, 1), (2, 3), (4, 5), (6, 7), (8, 9)]
    for t, task in enumerate(stream.tasks):
        assert task.index == t
        assert task.outputs == slice(2 * t, 2 * t + 2)
        for (x, y), count in ((task.train(), 60), (task.test(), 12)):
            assert len(x) == len(y) == count
            assert torch.equal((x.flatten(1)[:, 0] * 255).round().long(), y)
            assert set(y.tolist()) == set(task.classes)


def test_all_images_are_in_exactly_one_task():
    stream = split(synthetic(), tasks=5, class_order="seeded", seed=4)
    per_task = [identities(task.train()[0]) for task in stream.tasks]
    assert sum(map(len, per_task)) == 300
    assert len(set().union(*per_task)) == 300


def test_labels_are_outputs_under_any_order():
    order = (7, 3, 0, 9, 1, 2, 8, 4, 6, 5)
    stream = split(synthetic(), tasks=5, class_order=order)
    for task in stream.tasks:
        assert task.classes == order[task.outputs]
        x, y = task.test()
        labels = (x.flatten(1)[:, 0] * 255).round().int().tolist()
        assert [order[output] for output in y.tolist()] == labels


def test_samples_are_drawn_without_replacement():
    task = split(synthetic(), tasks=5, samples=25, seed=2).tasks[3]
    x, y = task.train()
    assert len(identities(x)) == 25
    assert set(y.tolist()) <= {6, 7}
    assert len(task.test()[0]) == 12, "the test set stays whole"


def test_class_scenario_with_a_larger_first_task():
    stream = split(synthetic(), tasks=6, scenario="class", first=5)
    assert stream.scenario == "class"
    assert [t.outputs for t in stream.tasks] == [
        slice(0, 5), slice(5, 6), slice(6, 7), slice(7, 8), slice(8, 9), slice(9, 10),
    ]  # fmt: skip
    assert stream.outputs == 10
    assert [len(t.train()[0]) for t in stream.tasks] == [150, 30, 30, 30, 30, 30]


def test_domain_scenario_shares_the_outputs():
    stream = split(synthetic(), tasks=5, scenario="domain")
    assert stream.outputs == 2
    for task in stream.tasks:
        assert task.outputs == slice(0, 2)
        x, y = task.train()
        labels = (x.flatten(1)[:, 0] * 255).round().long()
        assert torch.equal(labels - task.classes[0], y)


# Seeds, scales and cost ---------------------------------------------------------------------


@pytest.mark.parametrize(
    "make",
    [
        lambda data, seed: permuted(data, 3, 20, seed),
        lambda data, seed: rotated(data, 3, 20, seed),
        lambda data, seed: split(data, 5, 20, "seeded", seed),
    ],
)
def test_one_seed_one_stream(make):
    data = synthetic()
    torch.manual_seed(0)
    np.random.seed(0)  # noqa: NPY002 - global generators must not matter
    one = make(data, 1)
    torch.rand(3)
    same, other = make(data, 1), make(data, 2)
    for a, b in zip(one.tasks, same.tasks, strict=True):
        assert a.classes == b.classes
        for u, v in zip((*a.train(), *a.test()), (*b.train(), *b.test()), strict=True):
            assert torch.equal(u, v)
    assert not torch.equal(one.tasks[0].train()[0], other.tasks[0].train()[0])


def test_floats_are_in_the_unit_interval_whatever_the_scale():
    data = load("digits")
    x, _ = split(data, tasks=5).tasks[0].train()
    assert float(x.min()) == 0.0
    assert float(x.max()) == 1.0


def test_what_a_task_returns_may_be_changed():
    task = permuted(synthetic(), tasks=1, samples=None).tasks[0]
    x, _ = task.train()
    x.zero_()
    assert task.train()[0].any()
    plain = split(synthetic(), tasks=1).tasks[0]
    for tensor in plain.test():
        tensor.zero_()
    assert all(tensor.any() for tensor in plain.test())


def test_streams_share_the_data_sets_memory():
    data = synthetic()
    for stream in (permuted(data, 3, 20), split(data, 5)):
        for task in stream.tasks:
            assert task.training.images.data_ptr() == data.train_x.data_ptr()
            assert task.testing.images.data_ptr() == data.test_x.data_ptr()


# Orders -------------------------------------------------------------------------------------


def test_published_orders():
    assert class_order("numpy-1993", 100)[:10] == (68, 56, 78, 8, 23, 84, 90, 65, 74, 76)
    assert class_order("icarl", 100)[:10] == (87, 0, 52, 58, 44, 91, 68, 97, 51, 15)
    for name in ("natural", "seeded", "numpy-1993", "icarl"):
        assert sorted(class_order(name, 100, seed=1)) == list(range(100))
    assert class_order("natural", 4) == (0, 1, 2, 3)


def test_seeded_order_follows_the_seed():
    assert class_order("seeded", 50, seed=1) == class_order("seeded", 50, seed=1)
    assert class_order("seeded", 50, seed=1) != class_order("seeded", 50, seed=2)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda d: split(d, 3), "tasks=3 does not divide 10 classes"),
        (lambda d: split(d, 0), "tasks=0 must be at least 1"),
        (lambda d: permuted(d, 0), "tasks=0 must be at least 1"),
        (lambda d: permuted(d, 2, 301), "samples=301: task 0 has 300 training images"),
        (lambda d: split(d, 5, 61), "samples=61: task 0 has 60 training images"),
        (lambda d: split(d, 5, 0), "samples=0: task 0"),
        (lambda d: split(d, 4, first=5), "first=5 leaves 5 of 10 classes"),
        (lambda d: split(d, 5, scenario="tasks"), "scenario='tasks' is not known"),
        (lambda d: split(d, 3, scenario="domain", first=6), "first: a 'domain' stream"),
        (lambda d: split(d, 5, class_order="alphabetical"), "class_order='alphabetical' is not"),
        (lambda d: split(d, 5, class_order="icarl"), "class_order='icarl' orders 100 classes"),
        (lambda d: split(d, 5, class_order=[0, 1, 1]), "class_order must hold each label"),
    ],
)
def test_wrong_arguments(call, message):
    with pytest.raises(ValueError, match=message):
        call(synthetic())


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda d: split((d.train_x, d.train_y), 5), r"dataset is a tuple; pass .*make_dataset"),
        (lambda d: permuted(d.train_x, 2), "dataset is a Tensor; pass"),
        (lambda d: rotated([d]), "dataset is a list; pass"),
        (lambda d: split(d, "2"), "tasks='2' is invalid: expected a whole number"),
        (lambda d: split(d, 5, first=2.5), "first=2.5 is invalid"),
        (lambda d: permuted(d, 2, seed="a"), "seed='a' is invalid"),
        (lambda d: permuted(d, 2, samples=1.5), "samples=1.5 is invalid"),
        (lambda d: permuted(d, None), "tasks=None is invalid"),
    ],
)
def test_arguments_of_a_wrong_type(call, message):
    with pytest.raises(TypeError, match=message):
        call(synthetic())
