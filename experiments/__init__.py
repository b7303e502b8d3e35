"""Benchmarks, baselines, runs and reports.

Everything that the command line runs can also be run from Python: `run` trains and evaluates a
preset and returns its result. The names here are imported when they are first used, because torch
takes seconds to load.

Examples
--------
>>> from gradproj.experiments import run
>>> result = run("permuted-digits/ours", seed=0, stream={"tasks": 2, "samples": 20}, progress=False)
>>> result.accuracy_matrix.shape, sorted(result.metrics)[0]
((2, 2), 'acc')
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gradproj.experiments.cli.python import run
    from gradproj.experiments.data import Dataset, make_dataset
    from gradproj.experiments.methods.learner import Learner
    from gradproj.experiments.methods.projection.learner import ProjectionLearner
    from gradproj.experiments.reports.result import Result
    from gradproj.experiments.runs.presets import find as preset
    from gradproj.experiments.streams import Stream, Task, permuted, rotated, split

__all__ = [
    "Dataset",
    "Learner",
    "ProjectionLearner",
    "Result",
    "Stream",
    "Task",
    "make_dataset",
    "permuted",
    "preset",
    "rotated",
    "run",
    "split",
]

# Name → module, with the name there after a colon if it differs.
_HOMES = {
    "Dataset": "data",
    "Learner": "methods.learner",
    "ProjectionLearner": "methods.projection.learner",
    "Result": "reports.result",
    "Stream": "streams",
    "Task": "streams",
    "make_dataset": "data",
    "permuted": "streams",
    "preset": "runs.presets:find",
    "rotated": "streams",
    "run": "cli.python",
    "split": "streams",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, _, other = _HOMES[name].partition(":")
    value = getattr(importlib.import_module(f"{__name__}.{module}"), other or name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
