"""Run folders as the runner leaves them, without running anything."""

import json

import numpy as np

from gradproj.experiments.common.schema import to_plain
from gradproj.experiments.runs import presets
from gradproj.experiments.runs.evaluation import summarise

ENVIRONMENT = {"python": "3.11.7", "versions": {"gradproj": "0.1.0", "torch": ""}, "commit": ""}


def matrix(last, tasks=4, learned=0.8):
    """An accuracy matrix whose last row is `last` everywhere and whose diagonal is `learned`."""
    R = np.full((tasks, tasks), 0.1)
    for i in range(tasks):
        R[i, :i] = learned
        R[i, i] = learned
    R[-1] = last
    return R.tolist()


def write_run(root, preset, seed=0, R=None, *, changes=None, steps=(), **extra):
    """Write the folder of a run; without R it is unfinished."""
    config = presets.find(preset, {"seed": seed, **(changes or {})})
    folder = root / preset / f"seed-{seed}"
    while folder.exists():
        folder = folder.with_name(folder.name + "x")
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(config.to_json())
    (folder / "environment.json").write_text(json.dumps(ENVIRONMENT))
    (folder / "steps.jsonl").write_text("".join(json.dumps(row) + "\n" for row in steps))
    if R is not None:
        whole = not any(v is None for row in R for v in row)
        result = {
            "scenario": "domain",
            "accuracy_matrix": R,
            "metrics": summarise(R, [0.1] * len(R)) if whole else {"acc": float(np.mean(R[-1]))},
            "train_seconds": 90.0,
            "evaluation_seconds": 30.0,
            **extra,
        }
        (folder / "result.json").write_text(json.dumps(result))
    return folder, to_plain(config)
