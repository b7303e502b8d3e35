"""Streams made from one data set: permuted pixels, rotated images, split classes."""

from collections.abc import Sequence
from numbers import Integral

import numpy as np
import torch
from numpy.random import Generator

from gradproj.experiments.data.dataset import Dataset
from gradproj.experiments.streams.orders import class_order as resolve_order
from gradproj.experiments.streams.pixel_maps import rotation_map
from gradproj.experiments.streams.stream import Part, Scenario, Stream, Task

__all__ = ["permuted", "rotated", "split"]


def permuted(
    dataset: Dataset, tasks: int = 20, samples: int | None = 1000, seed: int = 0
) -> Stream:
    """Build a stream whose tasks, the first included, each permute the pixels in their own way.

    Parameters
    ----------
    dataset : Dataset
    tasks : int
        Number of tasks.
    samples : int or None
        Number of training images per task, drawn without replacement and independently for each
        task; None uses all. Every task uses the whole test set.
    seed : int
        Seed of the permutations and of the draws; task t does not depend on the number of tasks.

    Examples
    --------
    >>> from gradproj.experiments.data import load
    >>> stream = permuted(load("digits"), tasks=3, samples=100, seed=0)
    >>> x, y = stream.tasks[2].train()
    >>> x.shape, stream.tasks[2].outputs
    (torch.Size([100, 1, 8, 8]), slice(0, 10, None))
    """
    _check(dataset, tasks=tasks, samples=samples, seed=seed)
    _, height, width = dataset.shape
    maps = [
        torch.from_numpy(_generator(seed, "pixels", t).permutation(height * width))
        for t in range(tasks)
    ]
    return _shared_head(f"permuted-{dataset.name}", dataset, maps, samples, seed)


def rotated(dataset: Dataset, tasks: int = 20, samples: int | None = 1000, seed: int = 0) -> Stream:
    """Build a stream whose task t rotates all images by one angle.

    The angle is uniform in [180·t/T, 180·(t+1)/T) degrees. Pillow rotates with nearest neighbours
    and black corners. The arguments are those of `permuted`.

    Examples
    --------
    >>> from gradproj.experiments.data import load
    >>> len(rotated(load("digits"), tasks=4, samples=50).tasks[0].test()[0])
    355
    """
    _check(dataset, tasks=tasks, samples=samples, seed=seed)
    _, height, width = dataset.shape
    if height == 1:
        raise ValueError(
            f"dataset {dataset.name!r} has samples of shape {dataset.shape}, which cannot be "
            "rotated; use `permuted` or `split` for vectors"
        )
    step = 180.0 / tasks
    maps = [
        rotation_map(height, width, float(_generator(seed, "angle", t).uniform(t, t + 1) * step))
        for t in range(tasks)
    ]
    return _shared_head(f"rotated-{dataset.name}", dataset, maps, samples, seed)


def split(
    dataset: Dataset,
    tasks: int,
    samples: int | None = None,
    class_order: str | Sequence[int] = "natural",
    seed: int = 0,
    scenario: Scenario = "task",
    first: int | None = None,
    classes: int | None = None,
) -> Stream:
    """Build a stream that splits the classes among the tasks, the same number for each.

    Parameters
    ----------
    dataset : Dataset
    tasks : int
        Number of tasks.
    samples : int or None
        Number of training images per task, drawn without replacement; None uses all.
    class_order : str or sequence of int
        As `gradproj.experiments.streams.orders.class_order`.
    seed : int
        Seed of the draws, and of the order if that is "seeded".
    scenario : "task", "class" or "domain"
        With "task" and "class" the k-th class of the order has output k, so tasks own disjoint
        outputs; with "domain" every task uses the same outputs.
    first : int or None
        Number of classes of the first task, for protocols that start from half of the classes.
        The other tasks share the rest equally.
    classes : int or None
        Use only the first classes of the order, and leave out the images of the others. None uses
        all classes.

    Examples
    --------
    >>> from gradproj.experiments.data import load
    >>> stream = split(load("digits"), tasks=5)
    >>> stream.tasks[1].classes, stream.tasks[1].outputs
    ((2, 3), slice(2, 4, None))
    """
    _check(dataset, tasks=tasks, samples=samples, seed=seed, first=first, classes=classes)
    if scenario not in ("task", "class", "domain"):
        raise ValueError(f"scenario={scenario!r} is not known; use 'task', 'class' or 'domain'")
    if scenario == "domain" and first is not None:
        raise ValueError("first: a 'domain' stream needs tasks of equal size; leave it out")
    order = resolve_order(class_order, dataset.classes, seed)
    used = dataset.classes if classes is None else classes
    if not 1 <= used <= dataset.classes:
        raise ValueError(
            f"classes={classes} is invalid: {dataset.name} has {dataset.classes} classes, so "
            f"expected an integer from 1 to {dataset.classes}"
        )
    position = torch.empty(dataset.classes, dtype=torch.int64)
    position[list(order)] = torch.arange(dataset.classes)
    train_output, test_output = position[dataset.train_y], position[dataset.test_y]
    bounds = _bounds(used, tasks, first)
    made = []
    for t, (start, stop) in enumerate(bounds):
        train, test = _within(train_output, start, stop), _within(test_output, start, stop)
        if samples is not None:
            train = train[_draw(len(train), samples, seed, t)]
        shift = start if scenario == "domain" else 0
        made.append(
            Task(
                index=t,
                classes=order[start:stop],
                outputs=slice(start - shift, stop - shift),
                training=Part(dataset.train_x, train, train_output[train] - shift, dataset.scale),
                testing=Part(dataset.test_x, test, test_output[test] - shift, dataset.scale),
            )
        )
    outputs = bounds[0][1] if scenario == "domain" else used
    return Stream(f"split-{dataset.name}", scenario, tuple(made), outputs, dataset.shape)


def _shared_head(
    name: str, dataset: Dataset, maps: list[torch.Tensor], samples: int | None, seed: int
) -> Stream:
    tasks = []
    for t, pixels in enumerate(maps):
        rows = None if samples is None else _draw(len(dataset.train_x), samples, seed, t)
        labels = dataset.train_y if rows is None else dataset.train_y[rows]
        tasks.append(
            Task(
                index=t,
                classes=tuple(range(dataset.classes)),
                outputs=slice(0, dataset.classes),
                training=Part(dataset.train_x, rows, labels, dataset.scale, pixels),
                testing=Part(dataset.test_x, None, dataset.test_y, dataset.scale, pixels),
            )
        )
    return Stream(name, "domain", tuple(tasks), dataset.classes, dataset.shape)


def _within(output: torch.Tensor, start: int, stop: int) -> torch.Tensor:
    return torch.nonzero((output >= start) & (output < stop)).squeeze(1)


def _bounds(classes: int, tasks: int, first: int | None) -> list[tuple[int, int]]:
    if first is None:
        if classes % tasks:
            raise ValueError(
                f"tasks={tasks} does not divide {classes} classes; use a divisor of {classes}, "
                "or `first` for a first task of another size"
            )
        sizes = [classes // tasks] * tasks
    else:
        rest = classes - first
        if tasks < 2 or first < 1 or rest < tasks - 1 or rest % (tasks - 1):
            raise ValueError(
                f"first={first} leaves {rest} of {classes} classes, which do not divide among "
                f"{tasks - 1} further tasks; choose another `first` or `tasks`"
            )
        sizes = [first] + [rest // (tasks - 1)] * (tasks - 1)
    stops = np.cumsum(sizes).tolist()
    return list(zip([0, *stops[:-1]], stops, strict=True))


def _draw(available: int, samples: int, seed: int, task: int) -> torch.Tensor:
    if not 1 <= samples <= available:
        raise ValueError(
            f"samples={samples}: task {task} has {available} training images; "
            f"use a number from 1 to {available}, or None for all"
        )
    chosen = _generator(seed, "samples", task).choice(available, samples, replace=False)
    return torch.from_numpy(chosen.astype(np.int64))


# The purpose and the task are part of the seed, so that draws are independent.
_PURPOSES = {"pixels": 1, "angle": 2, "samples": 3}


def _generator(seed: int, purpose: str, task: int) -> Generator:
    return np.random.default_rng([seed, _PURPOSES[purpose], task])


def _check(dataset: Dataset, *, tasks: int, seed: int, **optional: int | None) -> None:
    """Raise for a data set or a number of the wrong type, and for fewer tasks than one."""
    if not isinstance(dataset, Dataset):
        raise TypeError(
            f"dataset is a {type(dataset).__name__}; pass gradproj.experiments.make_dataset(x, y)"
        )
    for name, value in {"tasks": tasks, "seed": seed, **optional}.items():
        if not isinstance(value, Integral) and (name not in optional or value is not None):
            raise TypeError(f"{name}={value!r} is invalid: expected a whole number")
    if tasks < 1:
        raise ValueError(f"tasks={tasks} must be at least 1")
