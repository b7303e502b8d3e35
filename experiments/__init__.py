"""Benchmarks, baselines, runs and reports.

Everything that the command line runs can be run from Python: `preset` makes a configuration, `run`
runs it in a folder. The names here are imported when they are first used, since torch takes seconds
to load.

Examples
--------
>>> import json, tempfile
>>> from pathlib import Path
>>> from gradproj.experiments import preset, run
>>> config = preset("permuted-digits/ours", {"stream": {"tasks": 2, "samples": 20}})
>>> with tempfile.TemporaryDirectory() as folder:
...     finished = run(config, folder)
...     result = json.loads(Path(folder, "result.json").read_text())
>>> finished, len(result["accuracy_matrix"]), sorted(result["metrics"])[0]
(True, 2, 'acc')
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gradproj.experiments.data import Dataset, make_dataset
    from gradproj.experiments.methods.learner import Learner
    from gradproj.experiments.methods.projection.learner import ProjectionLearner
    from gradproj.experiments.runs.presets import find as preset
    from gradproj.experiments.runs.runner import run
    from gradproj.experiments.streams import Stream, Task, permuted, rotated, split

__all__ = [
    "Dataset",
    "Learner",
    "ProjectionLearner",
    "Stream",
    "Task",
    "make_dataset",
    "permuted",
    "preset",
    "rotated",
    "run",
    "split",
]

# Name → module, and the name there if it is another one.
_HOMES = {
    "Dataset": "data",
    "Learner": "methods.learner",
    "ProjectionLearner": "methods.projection.learner",
    "Stream": "streams",
    "Task": "streams",
    "make_dataset": "data",
    "permuted": "streams",
    "preset": "runs.presets:find",
    "rotated": "streams",
    "run": "runs.runner",
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
