"""Golden results: the results of every method on a tiny stream, to compare later code with.

    python tests/golden/record.py            record the cases that are missing, drop old ones
    python tests/golden/record.py --again    record all cases again

Record again only in a commit that is meant to change results, and say so in the changelog.
"""

from __future__ import annotations

import argparse
import json
import platform
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gradproj.experiments import methods
from gradproj.experiments.common.tables import merge
from gradproj.experiments.runs.environment import describe_processor
from gradproj.experiments.runs.resolve import resolve
from gradproj.experiments.runs.runner import run

STORED = Path(__file__).with_name("results.json")

# Three tasks of a domain: the decomposition needs two old ones.
STREAMS: dict[str, dict[str, Any]] = {
    "task": {"benchmark": "split-digits", "stream": {"tasks": 2, "samples": 40}},
    "domain": {"benchmark": "permuted-digits", "stream": {"tasks": 3, "samples": 30}},
    "class": {"benchmark": "class-digits", "stream": {"tasks": 2, "samples": 40}},
}
SHARED: dict[str, Any] = {
    "batch": 8,
    "network_options": {"hidden": [6]},
    # Fewer are drawn than are stored, in each of the five parts of a buffer as well.
    "memory": {"per_task": 20, "batch": 3},
    "momentum": 0.5,
    "weight_decay": 1e-3,
    "epochs": 2,
    "milestones": [1],
    "lr_factor": 0.5,
}
# Later phases and steps, cut short.
SHORT: dict[str, dict[str, Any]] = {
    "eeil": {"balance": {"epochs": 1}},
    "gd": {"balance": {"epochs": 1}},
    "muc": {"training": {"epochs": 1}},
    "bic": {"correction": {"epochs": 1}},
}
# Draws that no method makes by default.
MORE: dict[str, dict[str, Any]] = {
    "single, averaged weights": {"method": "single", **STREAMS["task"], "ema": 0.5},
    "single, rotated": {
        "method": "single",
        "benchmark": "rotated-digits",
        "stream": {"tasks": 2, "samples": 40},
    },
    "ours, shifted images, herding": {
        "method": "ours",
        **STREAMS["class"],
        "augment": "crop-flip",
        "memory": {"policy": "herding"},
    },
    "ours, reservoir, residual network": {
        "method": "ours",
        **STREAMS["task"],
        "network": "resnet18-small",
        "network_options": {"nf": 2, "blocks": [1, 1]},
        "memory": {"policy": "reservoir"},
    },
    "agem, original form": {
        "method": "agem",
        **STREAMS["domain"],
        "options": {"form": "original", "reference": 6, "strength": 0.0},
    },
    "agem, the sum and a ridge": {
        "method": "agem",
        **STREAMS["domain"],
        "options": {"strength": 0.5, "replay": "sum", "ridge": 0.001},
    },
    "gem, as released": {
        "method": "gem",
        **STREAMS["domain"],
        "memory": {"batch": 0},
        "options": {"strength": 0.5, "replay": "sum", "ridge": 0.001},
    },
    "ours, part margin": {
        "method": "ours",
        **STREAMS["domain"],
        "options": {"strength": 0.5, "replay": "sum", "rule": "part-margin"},
    },
    "replay, on violations": {
        "method": "replay",
        **STREAMS["domain"],
        "options": {"rule": "violated", "layers": "module"},
    },
}


def cases() -> dict[str, dict[str, Any]]:
    """Map each case to its configuration: every method in every scenario, and some more."""
    found: dict[str, dict[str, Any]] = {}
    for name, learner in methods.available().items():
        for scenario in learner.scenarios:
            values = {"method": name, **STREAMS[scenario], "options": SHORT.get(name, {})}
            found[f"{name}, {scenario}"] = merge(SHARED, values)
    for name, values in MORE.items():
        shared = {key: value for key, value in SHARED.items() if key != "network_options"}
        found[name] = merge(shared if "network" in values else SHARED, values)
    return found


def measure(values: dict[str, Any]) -> dict[str, Any]:
    """Run one case: the loss and the corrections of each step, and all accuracies."""
    with tempfile.TemporaryDirectory() as folder:
        run(resolve(values), folder)
        result = json.loads(Path(folder, "result.json").read_text(encoding="utf-8"))
        log = Path(folder, "steps.jsonl").read_text(encoding="utf-8").splitlines()
    steps = [json.loads(line) for line in log]
    kept = ("baseline", "accuracy_matrix", "averaged_accuracy_matrix", "confusion")
    found = {key: result[key] for key in kept if key in result}
    found["losses"] = [step["loss"] for step in steps]
    if any("ranks" in step for step in steps):
        found["corrected"] = [step.get("corrected") for step in steps]
        found["ranks"] = [step.get("ranks") for step in steps]
    return found


def environment() -> dict[str, str]:
    """Name what decides the last bits of a result."""
    return {
        "torch": torch.__version__,
        "numpy": np.__version__,
        "machine": platform.machine(),
        **describe_processor(),
    }


def load() -> dict[str, Any]:
    """Read what is stored."""
    stored: dict[str, Any] = json.loads(STORED.read_text(encoding="utf-8"))
    return stored


def main() -> None:
    """Record."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--again", action="store_true", help="record all cases again")
    again = parser.parse_args().again
    torch.set_num_threads(1)
    here = environment()
    stored = {"environment": here, "cases": {}} if again else load()
    if stored["environment"] != here:
        raise SystemExit(
            f"the results were recorded in another environment ({stored['environment']}); "
            "--again records all of them in this one"
        )
    wanted = cases()
    missing = [name for name in wanted if name not in stored["cases"]]
    new = {name: measure(wanted[name]) for name in missing}
    kept = {name: {**stored["cases"], **new}[name] for name in wanted}
    lines = [f"    {json.dumps(name)}: {json.dumps(found)}" for name, found in kept.items()]
    text = f'{{\n  "environment": {json.dumps(here)},\n  "cases": {{\n' + ",\n".join(lines)
    STORED.write_text(text + "\n  }\n}\n", encoding="utf-8")
    print(f"recorded {len(new)} cases: {', '.join(new) or 'none was missing'}")


if __name__ == "__main__":
    main()
