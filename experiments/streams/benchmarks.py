"""Benchmarks by name: a data set, a builder of tasks, and the published sizes."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from gradproj.experiments.common.registry import is_own, load_object, lookup, nearest
from gradproj.experiments.data import Dataset, hold_out, load
from gradproj.experiments.streams.builders import permuted, rotated, split
from gradproj.experiments.streams.stream import Stream

__all__ = ["BENCHMARKS", "Benchmark", "build", "check_options", "is_own_benchmark"]

_BUILDERS: dict[str, Callable[..., Stream]] = {
    "permuted": permuted,
    "rotated": rotated,
    "split": split,
}


_WHOLE_NUMBERS = ("tasks", "samples", "seed", "first", "classes")
_OPTIONAL = ("samples", "first", "classes")


@dataclass(frozen=True)
class Benchmark:
    """A named benchmark.

    Attributes
    ----------
    kind : "permuted", "rotated" or "split"
    dataset : str
        Name for `gradproj.experiments.data.load`.
    options : mapping
        Arguments of the builder that differ from its own defaults.
    """

    kind: str
    dataset: str
    options: Mapping[str, Any] = field(default_factory=dict)


BENCHMARKS: dict[str, Benchmark] = {
    "mnist-permutations": Benchmark("permuted", "mnist"),
    "mnist-rotations": Benchmark("rotated", "mnist"),
    "split-mnist": Benchmark("split", "mnist", {"tasks": 5}),
    "split-cifar10": Benchmark("split", "cifar10", {"tasks": 5, "samples": 2500}),
    "split-cifar100": Benchmark("split", "cifar100", {"tasks": 20, "samples": 2500}),
    "split-tiny-imagenet": Benchmark("split", "tiny-imagenet", {"tasks": 20, "samples": 2500}),
    "permuted-fashion-mnist": Benchmark("permuted", "fashion-mnist"),
    "rotated-fashion-mnist": Benchmark("rotated", "fashion-mnist"),
    "split-fashion-mnist": Benchmark("split", "fashion-mnist", {"tasks": 5}),
    "permuted-digits": Benchmark("permuted", "digits", {"tasks": 10}),
    "rotated-digits": Benchmark("rotated", "digits", {"tasks": 10}),
    "split-digits": Benchmark("split", "digits", {"tasks": 5}),
    "class-cifar100": Benchmark(
        "split", "cifar100", {"tasks": 10, "scenario": "class", "class_order": "numpy-1993"}
    ),
    # A class-incremental stream for one core: a fifth of the classes, all of their images.
    "class-cifar100-mid": Benchmark(
        "split",
        "cifar100",
        {"tasks": 5, "classes": 20, "scenario": "class", "class_order": "numpy-1993"},
    ),
    "class-digits": Benchmark("split", "digits", {"tasks": 5, "scenario": "class"}),
}


def build(
    name: str,
    *,
    root: str | Path | None = None,
    download: bool = True,
    dataset: Dataset | None = None,
    validation: float = 0.0,
    **options: Any,
) -> Stream:
    """Build the stream of a benchmark.

    Parameters
    ----------
    name : str
        A key of `BENCHMARKS`; or "split:CLASS", "permuted:CLASS", "rotated:CLASS" with a data set
        class of torchvision ("split:SVHN"); or "split", "permuted", "rotated" with `dataset`; or a
        user-defined `module:function`, which is called with `options` only and returns a Stream.
    root : path, optional
        The data folder; GRADPROJ_DATA or the user's cache by default.
    download : bool
        Whether a missing data set may be downloaded.
    dataset : Dataset, optional
        Use this instead of the named data set. `gradproj.experiments.data.from_pair` converts
        torchvision-style objects.
    validation : float
        Hold out this share of the training images of each class and test on them instead of on the
        test images. Use it to choose hyper-parameters. 0 tests on the test images.
    **options
        Arguments of the builder: `tasks`, `samples`, `seed`; for splits also `class_order`,
        `scenario`, `first`, `classes`.

    Returns
    -------
    Stream
        Named after the benchmark.

    Examples
    --------
    >>> stream = build("permuted-digits", tasks=3, seed=1)
    >>> stream.name, len(stream.tasks), stream.outputs, stream.scenario
    ('permuted-digits', 3, 10, 'domain')
    """
    given = {**options, "validation": validation} if validation else options
    check_options(name, given, dataset)
    if is_own_benchmark(name):
        made = _own_function(name)(**options)
        if not isinstance(made, Stream):
            raise TypeError(
                f"benchmark {name!r} returned a {type(made).__name__}; return a "
                "gradproj.experiments.Stream"
            )
        return made
    benchmark = _find(name, dataset is not None)
    if dataset is None:
        dataset = load(benchmark.dataset, root, download=download)
    if validation:
        dataset = hold_out(dataset, validation, options.get("seed", 0))
    stream = _BUILDERS[benchmark.kind](dataset, **{**benchmark.options, **options})
    return replace(stream, name=name) if name in BENCHMARKS else stream


def check_options(name: str, options: Mapping[str, Any], dataset: Dataset | None = None) -> None:
    """Raise ValueError for an unknown benchmark or invalid options, before data is loaded.

    Examples
    --------
    >>> check_options("split-digits", {"task": 5})
    Traceback (most recent call last):
    ValueError: option of split-digits 'task' is not known; did you mean 'tasks'?
    """
    if is_own_benchmark(name):
        _check_own(name, options)
        return
    benchmark = _find(name, dataset is not None)
    accepted = list(inspect.signature(_BUILDERS[benchmark.kind]).parameters)[1:]
    for option, value in options.items():
        if option == "validation":
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1:
                raise ValueError(f"validation={value!r} is invalid: expected a number in [0, 1)")
            continue
        if option not in accepted:
            raise ValueError(nearest(option, [*accepted, "validation"], f"option of {name}"))
        optional = option in _OPTIONAL and value is None
        if option in _WHOLE_NUMBERS and type(value) is not int and not optional:
            raise ValueError(f"{option}={value!r} must be a whole number")
    if benchmark.kind == "split" and "tasks" not in {**benchmark.options, **options}:
        raise ValueError(f"tasks is needed for {name}: into how many tasks to split the classes")


def is_own_benchmark(name: str) -> bool:
    """Return whether a name is that of a user-defined function.

    Examples
    --------
    >>> is_own_benchmark("mine:stream"), is_own_benchmark("split:SVHN")
    (True, False)
    """
    return is_own(name) and name.partition(":")[0] not in _BUILDERS


def _own_function(name: str) -> Callable[..., Any]:
    try:
        function: Callable[..., Any] = load_object(name, "benchmark")
    except ValueError as error:
        raise ValueError(f"{error}. {_TORCHVISION}") from error
    return function


def _check_own(name: str, options: Mapping[str, Any]) -> None:
    try:
        inspect.signature(_own_function(name)).bind(**{"seed": 0, **options})
    except TypeError as error:
        raise ValueError(
            f"benchmark {name!r} cannot be called: {error}; it must take `seed` and what `stream` "
            "holds, by name"
        ) from error


_TORCHVISION = (
    "Any data set class of torchvision works as 'split:CLASS', 'permuted:CLASS' or 'rotated:CLASS'."
)


def _find(name: str, given: bool) -> Benchmark:
    kind, colon, cls = name.partition(":")
    if kind in _BUILDERS and (cls if colon else given):
        return Benchmark(kind, f"torchvision:{cls}")
    return lookup(name, BENCHMARKS, "benchmark", hint=_TORCHVISION)
