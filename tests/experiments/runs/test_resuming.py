"""A run that is stopped at any step and resumed ends like an uninterrupted one."""

import os
import signal

import numpy as np
import pytest
import torch
from support.killing import run_until
from support.running import QUICK, SPLIT, finish, steps_of, stop_at

from gradproj.experiments.common.errors import RunError
from gradproj.experiments.runs.folder import RunFolder
from gradproj.experiments.runs.grid.processes import process_context
from gradproj.experiments.runs.resolve import resolve
from gradproj.experiments.runs.runner import Interrupted, run

STATEFUL = {
    "ours": {**QUICK, "method": "ours", "options": {"strength": 0.5, "rank": 1}, "ema": 0.9},
    "sgem": {**QUICK, "method": "sgem", "options": {"strength": 0.5}},
    "agem": {**QUICK, "method": "agem", "options": {"form": "original", "reference": 5}},
    "derpp": {**QUICK, "method": "derpp", "momentum": 0.9, "epochs": 2},
    "gdumb": {**QUICK, "method": "gdumb", "options": {"passes": 2, "batch": 8}},
    "ewc": {**QUICK, "method": "ewc", "options": {"samples": 15}},
    "si": {**QUICK, "method": "si"},
    "preserve": {**QUICK, "method": "preserve", "options": {"samples": 10}},
    "preserve-replay": {**QUICK, "method": "preserve-replay"},
    "sgp": {**QUICK, "method": "sgp", "options": {"growth": 0.01}},
    "icarl": {**SPLIT, "method": "icarl", "options": {"exemplars": 20}},
    "batch norm": {
        **SPLIT,
        "method": "gem",
        "network": "resnet18-small",
        "network_options": {"nf": 2},
        "stream": {"tasks": 2, "samples": 20},
    },
}


@pytest.mark.parametrize("case", STATEFUL)
def test_ctrl_c_leaves_a_run_that_goes_on_bit_for_bit(case, tmp_path):
    values = STATEFUL[case]
    whole = finish(values, tmp_path / "whole")
    count = whole["steps"]
    for step in sorted(np.random.default_rng(0).choice(np.arange(1, count), 3, replace=False)):
        stop_at(values, tmp_path / "cut", int(step))
        assert (tmp_path / "cut" / "checkpoint.pt").exists()
    resumed = finish(values, tmp_path / "cut", resume=True)
    for key in ("accuracy_matrix", "baseline", "metrics", "steps", "averaged_accuracy_matrix"):
        assert resumed.get(key) == whole.get(key)
    assert steps_of(tmp_path / "cut") == steps_of(tmp_path / "whole")


def test_every_single_step_can_be_the_last(tmp_path):
    values = {**QUICK, "method": "ours", "stream": {"tasks": 2, "samples": 40}}
    whole = finish(values, tmp_path / "whole")
    for step in range(1, whole["steps"] + 1):
        stop_at(values, tmp_path / "cut", step)
    assert (
        finish(values, tmp_path / "cut", resume=True)["accuracy_matrix"] == whole["accuracy_matrix"]
    )


@pytest.mark.parametrize("case", ["ours", "gdumb"])
@pytest.mark.parametrize("checkpoint_seconds", [0.0, 0.02])
def test_sigkill_at_random_steps_changes_nothing(case, checkpoint_seconds, tmp_path):
    values = STATEFUL[case]
    whole = finish(values, tmp_path / "whole")
    seed = int.from_bytes(os.urandom(4))
    print(f"steps drawn with seed {seed}")
    for step in sorted(np.random.default_rng(seed).integers(1, whole["steps"], 2)):
        arguments = (values, tmp_path / "cut", int(step), checkpoint_seconds)
        context, _ = process_context()
        process = context.Process(target=run_until, args=arguments)
        process.start()
        process.join()
        assert process.exitcode == -signal.SIGKILL
        assert not (tmp_path / "cut" / "result.json").exists()
    resumed = finish(values, tmp_path / "cut", resume=True)
    assert resumed["accuracy_matrix"] == whole["accuracy_matrix"]
    assert resumed.get("averaged_accuracy_matrix") == whole.get("averaged_accuracy_matrix")
    assert steps_of(tmp_path / "cut") == steps_of(tmp_path / "whole")


def test_a_checkpoint_that_would_execute_code_is_refused(tmp_path):
    class Evil:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "owned"),)

    store = RunFolder(tmp_path)
    with store.prepared(resolve(QUICK)):
        store.checkpoints.save({"learner": Evil()})
    with pytest.raises(RunError, match=r"cannot be read .*UnpicklingError.*--force"):
        run(resolve(QUICK), tmp_path, resume=True)
    assert not (tmp_path / "owned").exists()


def test_a_checkpoint_of_an_older_version_is_refused(tmp_path):
    store = RunFolder(tmp_path)
    with store.prepared(resolve(QUICK)):
        torch.save({"learner": {}}, store.checkpoints.current)
    with pytest.raises(RunError, match=r"older gradproj, without a checksum; finish .* --force"):
        run(resolve(QUICK), tmp_path, resume=True)
    assert run(resolve(QUICK), tmp_path, force=True)


def test_a_run_stops_when_it_is_asked_to(tmp_path):
    asked = iter([False, False, True])
    with pytest.raises(Interrupted, match="--resume"):
        run(resolve(QUICK), tmp_path, should_stop=lambda: next(asked))
    state, problems = RunFolder(tmp_path).load_checkpoint()
    assert (state["position"]["total"], problems) == (3, [])


def test_a_run_that_diverged_is_not_finished_by_resuming_it(tmp_path):
    values = {**QUICK, "lr": 1e30}
    with pytest.raises(RunError, match="diverged"):
        run(resolve(values), tmp_path / "whole")
    for step in range(1, 5):
        folder = tmp_path / str(step)
        stop_at(values, folder, step)
        with pytest.raises(RunError, match="diverged in task 1"):
            run(resolve(values), folder, resume=True)
        assert not (folder / "result.json").exists()
