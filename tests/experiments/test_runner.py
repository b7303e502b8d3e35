"""Runs: what they write, and that stopping one anywhere changes nothing."""

import errno
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from support.killing import run_until
from support.toy import toy_learner

from gradproj.experiments import benchmarks, methods, metrics, runner, storage
from gradproj.experiments.config import RunConfig, resolve
from gradproj.experiments.evaluation import evaluate, summarise
from gradproj.experiments.grid import process_context
from gradproj.experiments.runner import Interrupted, run
from gradproj.experiments.schema import ConfigError
from gradproj.experiments.storage import RunError, RunFolder, StepLog
from gradproj.experiments.training import Run

QUICK = {
    "benchmark": "permuted-digits",
    "method": "single",
    "stream": {"tasks": 3, "samples": 40},
    "memory": {"per_task": 8, "batch": 4},
    "network_options": {"hidden": [6]},
}
SPLIT = {**QUICK, "benchmark": "split-digits", "stream": {"tasks": 5, "samples": 20}}
# What makes methods quick enough to be run whole.
SMALL = {
    "gdumb": {"passes": 2},
    "mas": {"samples": 5},
    "ogd": {"samples": 3},
    "icarl": {"exemplars": 20},
}


@pytest.fixture(autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def result_of(folder):
    return json.loads((Path(folder) / "result.json").read_text())


def steps_of(folder):
    """The log without its times, which no two runs share."""
    lines = (Path(folder) / "steps.jsonl").read_text().splitlines()
    return [{k: v for k, v in json.loads(line).items() if k != "seconds"} for line in lines]


def finish(values, folder, **arguments):
    assert run(resolve(values), Path(folder), **arguments)
    return result_of(folder)


# What a run writes ------------------------------------------------------------------------------


CASES = [
    (name, scenario) for name, kind in methods.available().items() for scenario in kind.scenarios
]


@pytest.mark.parametrize(("method", "scenario"), CASES)
def test_every_method_runs_to_the_end(method, scenario, tmp_path):
    base = QUICK if scenario == "domain" else SPLIT
    stream = base["stream"] | ({} if scenario == "domain" else {"scenario": scenario})
    values = {**base, "method": method, "options": SMALL.get(method, {}), "stream": stream}
    result = finish(values, tmp_path / "run")
    R = np.asarray(result["accuracy_matrix"])
    assert R.shape == (stream["tasks"],) * 2
    assert ((R >= 0) & (R <= 1)).all()
    assert result["scenario"] == scenario
    assert result["metrics"]["acc"] == metrics.average_accuracy(R)


def test_a_run_leaves_its_config_environment_log_and_result(tmp_path):
    values = {**QUICK, "method": "ours"}
    result = finish(values, tmp_path)
    assert RunConfig.read(tmp_path / "config.json") == resolve(values)
    environment = json.loads((tmp_path / "environment.json").read_text())
    assert environment["versions"]["torch"] == torch.__version__
    rows = steps_of(tmp_path)
    assert [row["step"] for row in rows] == list(range(1, 13))
    assert [row["task"] for row in rows] == [0] * 4 + [1] * 4 + [2] * 4
    assert all(row["loss"] > 0 for row in rows)
    assert "corrected" not in rows[0]
    assert len(rows[-1]["ranks"]) == 2
    assert result["steps"] == 12
    assert len(result["baseline"]) == 3
    assert not (tmp_path / "checkpoint.pt").exists()
    assert {p.name for p in tmp_path.iterdir()} == {
        ".lock",
        "config.json",
        "environment.json",
        "result.json",
        "steps.jsonl",
    }


def test_a_commit_is_that_of_the_code_and_not_of_the_project_around_it(tmp_path, monkeypatch):
    code = tmp_path / "storage.py"
    code.touch()
    monkeypatch.setattr(storage, "__file__", str(code))
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a"]
    subprocess.run([*git, "init", "-q"], check=True)
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "theirs"], check=True)
    assert storage.describe_environment()["commit"] == ""
    subprocess.run([*git, "add", "storage.py"], check=True)
    assert len(storage.describe_environment()["commit"]) == 40


def test_a_folder_may_be_a_string(tmp_path):
    assert run(resolve(QUICK), str(tmp_path / "run"))
    assert result_of(tmp_path / "run")["steps"] == 12


def test_equal_seeds_give_equal_results_and_others_do_not(tmp_path):
    values = {**QUICK, "method": "sgem", "options": {"strength": 0.5}}
    one, two = finish(values, tmp_path / "1"), finish(values, tmp_path / "2")
    assert one["accuracy_matrix"] == two["accuracy_matrix"]
    assert steps_of(tmp_path / "1") == steps_of(tmp_path / "2")
    other = finish({**values, "seed": 1}, tmp_path / "3")
    assert other["accuracy_matrix"] != one["accuracy_matrix"]


def test_methods_share_weights_and_order_for_one_seed(tmp_path):
    finish({**QUICK, "method": "single"}, tmp_path / "1")
    finish({**QUICK, "method": "gem"}, tmp_path / "2")
    first = [[row["loss"] for row in steps_of(tmp_path / n)[:4]] for n in "12"]
    assert first[0] == pytest.approx(first[1], rel=1e-5)


def test_epochs_run_within_a_task(tmp_path):
    finish({**QUICK, "epochs": 2}, tmp_path)
    rows = steps_of(tmp_path)
    assert [(row["task"], row["epoch"]) for row in rows[:9:4]] == [(0, 0), (0, 1), (1, 0)]


def test_unmeasured_rows_are_null_and_leave_acc(tmp_path):
    values = {**QUICK, "method": "gdumb", "options": {"passes": 1, "every_task": False}}
    result = finish(values, tmp_path)
    assert result["accuracy_matrix"][0] == [None] * 3
    assert result["metrics"] == {"acc": pytest.approx(np.mean(result["accuracy_matrix"][2]))}


def test_averaged_weights_are_the_exponential_average(tmp_path):
    values = {**QUICK, "ema": 0.9}
    config = resolve(values)
    store = RunFolder(tmp_path)
    from gradproj.experiments import benchmarks

    job = Run(config, benchmarks.build("permuted-digits", **runner.stream_options(config)), store)
    seen = []

    def listen(event):
        if event.kind == "step":
            seen.append([p.detach().clone() for p in job.learner.model.parameters()])

    job.listeners.append(listen)
    result = job.execute()
    wanted = seen[0]
    for values_now in seen[1:]:
        wanted = [0.9 * a + 0.1 * b for a, b in zip(wanted, values_now, strict=True)]
    for a, b in zip(job.average.module.parameters(), wanted, strict=True):
        torch.testing.assert_close(a.detach(), b)
    assert np.asarray(result["averaged_accuracy_matrix"]).shape == (3, 3)
    assert result["averaged_accuracy_matrix"] != result["accuracy_matrix"]
    plain = finish(QUICK, tmp_path / "plain")
    assert plain["accuracy_matrix"] == result["accuracy_matrix"]
    assert "averaged_accuracy_matrix" not in plain


def test_evaluation_counts_every_sample_and_restores_the_mode():
    learner = toy_learner("single")
    learner.predict = lambda x, task: torch.zeros(len(x), dtype=torch.int64)  # noqa: ARG005
    assert evaluate(learner, learner.stream, batch=7) == [0.25, 0.25]
    assert learner.model.training


@pytest.mark.parametrize(
    ("scenario", "named", "message"),
    [
        ("domain", [[0]], r"'single' returned shape \(7, 1\) for 7 images; return one output's"),
        # Class 0 taken for class 3 would count as class 1 taken for itself.
        ("class", [3], r"'single' named outputs 3 to 3; choose among those seen, 0 to 1"),
        ("class", [-1], r"'single' named outputs -1 to -1; choose among those seen"),
    ],
)
def test_predictions_that_cannot_be_counted_are_refused(scenario, named, message):
    learner = toy_learner("single", scenario=scenario)
    learner.predict = lambda x, task: torch.tensor(named * len(x))  # noqa: ARG005
    with pytest.raises(RunError, match=message):
        evaluate(learner, learner.stream, batch=7)


def test_summary_by_hand():
    summary = summarise([[0.8, 0.2], [0.6, 0.9]], [0.1, 0.1])
    assert summary["acc"] == pytest.approx(0.75)
    assert summary["bwt_pairs"] == pytest.approx(-0.2)
    assert summary["bwt_tasks"] == pytest.approx(-0.1)
    assert summary["fwt_pairs"] == pytest.approx(0.1)


def test_tensorboard_files_are_written(tmp_path):
    pytest.importorskip("tensorboard")
    finish(QUICK, tmp_path, tensorboard=True)
    assert list((tmp_path / "tensorboard").iterdir())


def test_tensorboard_missing_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(RunError, match=r"pip install 'gradproj\[tensorboard\]'"):
        run(resolve(QUICK), tmp_path, tensorboard=True)


# Stopping and going on --------------------------------------------------------------------------

STATEFUL = {
    "ours": {**QUICK, "method": "ours", "options": {"strength": 0.5, "rank": 1}, "ema": 0.9},
    "sgem": {**QUICK, "method": "sgem", "options": {"strength": 0.5}},
    "agem": {**QUICK, "method": "agem", "options": {"form": "original", "reference": 5}},
    "derpp": {**QUICK, "method": "derpp", "momentum": 0.9, "epochs": 2},
    "gdumb": {**QUICK, "method": "gdumb", "options": {"passes": 2, "batch": 8}},
    "ewc": {**QUICK, "method": "ewc", "options": {"samples": 15}},
    "si": {**QUICK, "method": "si"},
    "icarl": {**SPLIT, "method": "icarl", "options": {"exemplars": 20}},
    "batch norm": {
        **SPLIT,
        "method": "gem",
        "network": "resnet18-small",
        "network_options": {"nf": 2},
        "stream": {"tasks": 2, "samples": 20},
    },
}


@pytest.mark.parametrize(
    ("method", "options", "shares"),
    [
        ("single", {}, [1 / 3, 2 / 3, 1]),
        ("ours", {}, [1 / 9, 4 / 9, 1]),
        ("joint", {}, [1 / 6, 3 / 6, 1]),
        ("gdumb", {"passes": 8, "every_task": False}, [1 / 11, 2 / 11, 1]),
    ],
)
def test_progress_is_told_by_the_samples_a_task_takes(method, options, shares, tmp_path):
    values = {**QUICK, "method": method, "stream": {"tasks": 3, "samples": 20}}
    values["options"] = options
    values |= {"batch": 10, "memory": {"per_task": 50, "batch": 20}}
    told = []
    run(resolve(values), tmp_path, report=told.append)
    assert [e.fraction for e in told if e.kind == "task"] == pytest.approx(shares)
    steps = [e.fraction for e in told if e.kind == "step"]
    assert steps == sorted(steps)


def stop_at(values, folder, step):
    """Interrupt a run in this process as Ctrl-C does, after `step` steps."""

    def listen(event):
        if event.kind == "step" and event.step == step:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(Interrupted, match="--resume"):
        run(resolve(values), folder, resume=True, report=listen)


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
        process = process_context().Process(target=run_until, args=arguments)
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
        pass
    with store.checkpoint.open("wb") as file:
        torch.save({"learner": Evil()}, file)
    with pytest.raises(RunError, match=r"cannot be read .*UnpicklingError.*--force"):
        run(resolve(QUICK), tmp_path, resume=True)
    assert not (tmp_path / "owned").exists()


@pytest.mark.parametrize("share", [0.0, 0.5, 0.99])
def test_a_checkpoint_cut_short_is_named_with_the_cure(share, tmp_path):
    stop_at(QUICK, tmp_path, 3)
    content = (tmp_path / "checkpoint.pt").read_bytes()
    (tmp_path / "checkpoint.pt").write_bytes(content[: int(share * len(content))])
    with pytest.raises(RunError, match=r"checkpoint.pt cannot be read .*--force starts the run"):
        run(resolve(QUICK), tmp_path, resume=True)
    assert run(resolve(QUICK), tmp_path, force=True)


def test_a_run_stops_when_it_is_asked_to(tmp_path):
    asked = iter([False, False, True])
    with pytest.raises(Interrupted, match="--resume"):
        run(resolve(QUICK), tmp_path, should_stop=lambda: next(asked))
    assert RunFolder(tmp_path).load_checkpoint()["position"]["total"] == 3


# Folders ----------------------------------------------------------------------------------------


def test_a_finished_run_is_not_run_again_unless_forced(tmp_path):
    finish(QUICK, tmp_path)
    before = (tmp_path / "result.json").stat().st_mtime_ns
    assert not run(resolve(QUICK), tmp_path)
    assert (tmp_path / "result.json").stat().st_mtime_ns == before
    assert run(resolve(QUICK), tmp_path, force=True)


def test_force_keeps_what_is_there_if_the_new_run_cannot_begin(tmp_path):
    result = finish(QUICK, tmp_path)
    with pytest.raises(ConfigError, match="tasks=0 must be at least 1"):
        run(resolve({**QUICK, "stream": {"tasks": 0}}), tmp_path, force=True)
    assert result_of(tmp_path) == result


def test_an_error_while_training_keeps_its_kind(tmp_path, monkeypatch):
    def broken(*_):
        raise ValueError("a defect of the method")

    monkeypatch.setattr(methods.find("single"), "observe", broken)
    with pytest.raises(ValueError, match="a defect of the method") as caught:
        run(resolve(QUICK), tmp_path)
    assert caught.type is ValueError


def test_an_unfinished_run_needs_a_word(tmp_path):
    stop_at(QUICK, tmp_path, 3)
    with pytest.raises(RunError, match="--resume continues it, --force starts it over"):
        run(resolve(QUICK), tmp_path)
    assert run(resolve(QUICK), tmp_path, force=True)
    assert len(steps_of(tmp_path)) == 12


def test_another_configuration_is_not_mixed_in(tmp_path):
    finish(QUICK, tmp_path)
    with pytest.raises(RunError, match=r"another configuration \(differs in lr\)"):
        run(resolve({**QUICK, "lr": 0.5}), tmp_path)


def test_a_config_from_a_newer_version_is_refused(tmp_path):
    finish(QUICK, tmp_path)
    path = tmp_path / "config.json"
    path.write_text(path.read_text().replace('"version": 1', '"version": 99'))
    with pytest.raises(RunError, match="version=99 was written by a newer gradproj"):
        run(resolve(QUICK), tmp_path)


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match=r"file/run cannot be written .*--out"):
        run(resolve(QUICK), tmp_path / "file" / "run")


def test_a_full_disk_leaves_the_last_checkpoint(tmp_path, monkeypatch):
    store = RunFolder(tmp_path)
    store.save_checkpoint({"step": 1})

    def full(_descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(storage.os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        store.save_checkpoint({"step": 2})
    assert store.load_checkpoint() == {"step": 1}
    assert [p.name for p in tmp_path.iterdir()] == ["checkpoint.pt"]


def test_the_log_is_cut_back_to_the_checkpoint(tmp_path):
    log = StepLog(tmp_path / "log")
    log.add({"loss": torch.tensor(1.0)})
    offset = log.flush()
    log.add({"loss": torch.tensor(2.0)})
    log.close()
    log = StepLog(tmp_path / "log", offset)
    log.add({"loss": 3.0})
    log.add({"loss": float("nan")})
    log.close()
    assert (tmp_path / "log").read_text() == '{"loss":1.0}\n{"loss":3.0}\n{"loss":null}\n'


def test_a_method_is_refused_a_scenario_that_it_is_not_for(tmp_path):
    values = {**SPLIT, "method": "independent", "stream": {"tasks": 5, "scenario": "class"}}
    with pytest.raises(ValueError, match=r"'independent' is for the scenarios .* is 'class'"):
        run(resolve(values), tmp_path)


# What a run refuses -----------------------------------------------------------------------------


def test_one_folder_is_one_process(tmp_path):
    with (
        RunFolder(tmp_path).prepared(resolve(QUICK)),
        pytest.raises(RunError, match=r"another process is running in .*choose another folder"),
    ):
        run(resolve(QUICK), tmp_path)
    assert run(resolve(QUICK), tmp_path)


def test_a_run_done_by_another_process_while_the_data_was_loaded_is_left_alone(
    tmp_path, monkeypatch
):
    build = benchmarks.build

    def late(name, **options):
        monkeypatch.setattr(runner.benchmarks, "build", build)
        finish(QUICK, tmp_path)
        return build(name, **options)

    monkeypatch.setattr(runner.benchmarks, "build", late)
    assert not run(resolve(QUICK), tmp_path)
    (tmp_path / "config.json").unlink()
    monkeypatch.setattr(runner.benchmarks, "build", late)
    with pytest.raises(RunError, match=r"another configuration \(differs in lr\)"):
        run(resolve({**QUICK, "lr": 0.5}), tmp_path)


@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b"[]", b"{"])
def test_a_damaged_configuration_is_named(content, tmp_path):
    finish(QUICK, tmp_path)
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(RunError, match=r"config\.json cannot be read .*; --force starts the run"):
        run(resolve(QUICK), tmp_path)


@pytest.mark.parametrize(
    ("state", "reason"),
    [
        ({"a": 1}, r"KeyError: 'config'"),
        ([1, 2], "TypeError"),
        ({"config": resolve({**QUICK, "seed": 5}).to_json()}, "but of another configuration"),
        ({"config": resolve(QUICK).to_json()}, "KeyError: 'learner'"),
    ],
)
def test_a_checkpoint_of_something_else_is_refused(state, reason, tmp_path):
    store = RunFolder(tmp_path)
    with store.prepared(resolve(QUICK)):
        torch.save(state, store.checkpoint)
    with pytest.raises(RunError, match=f"is not a checkpoint of this run.*{reason}.*--force"):
        run(resolve(QUICK), tmp_path, resume=True)


@pytest.mark.parametrize("method", ["gdumb", "joint", "independent", "muc", "gd", "dr"])
def test_methods_not_trained_in_every_step_have_no_averaged_weights(method, tmp_path):
    stream = {"tasks": 5, "scenario": methods.find(method).scenarios[0]}
    values = {**SPLIT, "method": method, "stream": stream, "ema": 0.9}
    with pytest.raises(ConfigError, match=f"ema=0.9: method '{method}' cannot be evaluated with"):
        run(resolve(values), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("method", ["ours", "icarl-original", "lucir"])
def test_too_few_exemplars_are_refused_before_training(method, tmp_path):
    values = {"benchmark": "class-digits", "method": method, "memory": {"total": 5},
              "stream": {"tasks": 5}}  # fmt: skip
    values["memory"]["policy"] = "herding"
    with pytest.raises(ConfigError, match=r"memory.total=5 leaves no exemplar for each of 10"):
        run(resolve(values), tmp_path / "run")


def test_others_may_read_what_a_run_wrote(tmp_path):
    assert run(resolve(QUICK), tmp_path)
    for name in ("config.json", "environment.json", "result.json"):
        assert (tmp_path / name).stat().st_mode & 0o777 == 0o644


def test_starting_over_drops_the_old_tensorboard_files(tmp_path):
    assert run(resolve(QUICK), tmp_path, tensorboard=True)
    assert run(resolve(QUICK), tmp_path, tensorboard=True, force=True)
    assert len(list((tmp_path / "tensorboard").iterdir())) == 1


def test_networks_of_ones_own_tasks_may_differ_in_size(tmp_path):
    stream = {"tasks": 3, "first": 4, "samples": 20}
    assert run(resolve({**SPLIT, "method": "independent", "stream": stream}), tmp_path)
