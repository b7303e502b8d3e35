"""Small runs, done and read back, for tests of the runner."""

import json
import signal
from pathlib import Path

import pytest

from gradproj.experiments.runs.resolve import resolve
from gradproj.experiments.runs.runner import Interrupted, run

QUICK = {
    "benchmark": "permuted-digits",
    "method": "single",
    "stream": {"tasks": 3, "samples": 40},
    "memory": {"per_task": 8, "batch": 4},
    "network_options": {"hidden": [6]},
}
SPLIT = {**QUICK, "benchmark": "split-digits", "stream": {"tasks": 5, "samples": 20}}


def result_of(folder):
    return json.loads((Path(folder) / "result.json").read_text())


def steps_of(folder):
    """The log without its times, which no two runs share."""
    lines = (Path(folder) / "steps.jsonl").read_text().splitlines()
    return [{k: v for k, v in json.loads(line).items() if k != "seconds"} for line in lines]


def finish(values, folder, **arguments):
    assert run(resolve(values), Path(folder), **arguments)
    return result_of(folder)


def stop_at(values, folder, step):
    """Interrupt a run in this process as Ctrl-C does, after `step` steps."""

    def listen(event):
        if event.kind == "step" and event.step == step:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(Interrupted, match="--resume"):
        run(resolve(values), folder, resume=True, report=listen)
