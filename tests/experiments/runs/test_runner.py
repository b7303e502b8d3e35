"""Runs: the files they write, their measurements and their events."""

import json
import sys

import numpy as np
import pytest
import torch
from support.running import QUICK, SPLIT, finish, result_of, steps_of, stop_at
from support.toy import toy_learner

from gradproj.experiments import methods
from gradproj.experiments.common.errors import RunError
from gradproj.experiments.runs import metrics, runner
from gradproj.experiments.runs.evaluation import evaluate, summarise
from gradproj.experiments.runs.folder import RunFolder
from gradproj.experiments.runs.record import Record, guessed_classes
from gradproj.experiments.runs.resolve import resolve
from gradproj.experiments.runs.runner import run
from gradproj.experiments.runs.training import Run
from gradproj.experiments.streams import benchmarks

# Options that make slow methods quick enough for a whole run.
SMALL = {
    "gdumb": {"passes": 2},
    "mas": {"samples": 5},
    "ogd": {"samples": 3},
    "icarl": {"exemplars": 20},
}


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
    assert resolve(json.loads((tmp_path / "config.json").read_text())) == resolve(values)
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
    for a, b in zip(job.state.average.module.parameters(), wanted, strict=True):
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
        ("domain", [[0]], r"'single' returned shape \(7, 1\) for 7 images; return one class"),
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


@pytest.mark.parametrize(
    ("method", "options", "shares"),
    [
        ("single", {}, [1 / 3, 2 / 3, 1]),
        ("ours", {}, [1 / 9, 4 / 9, 1]),
        ("joint", {}, [1 / 6, 3 / 6, 1]),
        ("gdumb", {"passes": 8, "every_task": False}, [1 / 11, 2 / 11, 1]),
    ],
)
def test_progress_is_measured_in_samples_per_task(method, options, shares, tmp_path):
    values = {**QUICK, "method": method, "stream": {"tasks": 3, "samples": 20}}
    values["options"] = options
    values |= {"batch": 10, "memory": {"per_task": 50, "batch": 20}}
    heard = []
    run(resolve(values), tmp_path, report=heard.append)
    assert [e.fraction for e in heard if e.kind == "task"] == pytest.approx(shares)
    steps = [e.fraction for e in heard if e.kind == "step"]
    assert steps == sorted(steps)


def test_a_task_that_was_not_learned_is_noted_also_after_resuming(tmp_path):
    values = {**QUICK, "lr": 10.0}
    events = []
    whole = finish(values, tmp_path / "whole", report=events.append)
    notices = [event.message for event in events if event.kind == "notice"]
    assert whole["at_chance"] == [0, 1, 2]
    assert notices[1].startswith("task 2 was not learned: its mean loss ")
    assert "guessing one of 10 classes; try another lr (now 10) or more epochs" in notices[1]
    stop_at(values, tmp_path / "stopped", step=6)
    assert finish(values, tmp_path / "stopped", resume=True)["at_chance"] == whole["at_chance"]
    learned = {**QUICK, "stream": {"tasks": 2}, "network_options": {"hidden": [50]}}
    assert finish(learned, tmp_path / "learned")["at_chance"] == []


@pytest.mark.parametrize(
    ("scenario", "loss", "accuracy", "expected"),
    [
        ("domain", 2.31, 0.1, True),
        ("domain", 2.3025, 0.1, True),  # log(10) but for rounding
        ("domain", 2.2, 0.1, False),
        ("domain", 2.31, 0.3, False),  # A method may add other terms to its loss.
        ("task", 0.7, 0.5, True),  # one of 2 classes
        ("task", 0.7, 0.9, False),
        ("class", 1.0, 0.25, False),
        ("class", 1.4, 0.25, True),  # one of the 4 classes seen so far
    ],
)
def test_chance_depends_on_the_classes_that_compete(scenario, loss, accuracy, expected):
    names = {"domain": "permuted-digits", "task": "split-digits", "class": "class-digits"}
    task = benchmarks.build(names[scenario]).tasks[1]
    record = Record(matrix=[[1.0, 0.0], [1.0, accuracy]])
    classes = guessed_classes(task, scenario)
    assert record.note_if_at_chance(task, loss, classes) is expected
    assert record.at_chance == ([1] if expected else [])
