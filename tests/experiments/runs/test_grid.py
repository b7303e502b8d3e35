"""Many runs at once: all are done, and one that fails or dies leaves the others alone."""

import json
import signal
import subprocess
import sys

import pytest
from support.grids import Crash, CrashInAWord
from support.processes import HANGING, wait_for

from gradproj.experiments.runs.events import ENDINGS, Event, throttled
from gradproj.experiments.runs.grid import Job, execute_all
from gradproj.experiments.runs.grid.processes import run_in_processes
from gradproj.experiments.runs.resolve import resolve

QUICK = {
    "benchmark": "permuted-digits",
    "method": "single",
    "stream": {"tasks": 2, "samples": 20},
    "network_options": {"hidden": [4]},
}


def job(name, folder, **changes):
    return Job(name, resolve({**QUICK, **changes}), folder / name, {})


def matrix(folder):
    return json.loads((folder / "result.json").read_text())["accuracy_matrix"]


def test_all_runs_are_done_and_a_failure_is_reported(tmp_path):
    (tmp_path / "blocked").write_text("a file where the folder should be")
    jobs = [
        job("good", tmp_path),
        job("blocked", tmp_path),
        Job("dead", Crash(), tmp_path / "dead", {}),
        job("other", tmp_path, seed=1),
    ]
    events = []
    outcomes = run_in_processes(jobs, events.append, workers=2)
    assert [o.name for o in outcomes] == ["good", "blocked", "dead", "other"]
    assert [o.kind for o in outcomes] == ["finished", "failed", "failed", "finished"]
    assert "blocked cannot be written" in outcomes[1].message
    assert f"exit code {-signal.SIGKILL}" in outcomes[2].message
    assert matrix(tmp_path / "good") != matrix(tmp_path / "other")
    ended = {event.run: event.kind for event in events if event.kind in ENDINGS}
    assert ended == {"good": "finished", "blocked": "failed", "dead": "failed", "other": "finished"}

    again = run_in_processes([jobs[0], jobs[3]], events.append, workers=2)
    assert [o.kind for o in again] == ["skipped", "skipped"]


def test_a_run_killed_while_it_writes_leaves_the_others_alone(tmp_path):
    jobs = [Job("cut", CrashInAWord(), tmp_path / "cut", {}), job("good", tmp_path)]
    outcomes = run_in_processes(jobs, lambda _: None, workers=2)
    assert [o.kind for o in outcomes] == ["failed", "finished"]
    assert f"exit code {-signal.SIGKILL}" in outcomes[0].message


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_a_signal_to_the_parent_alone_stops_every_run_at_a_checkpoint(number, tmp_path):
    # Long enough never to end by itself, and the only checkpoint is the one of the stop.
    command = ["run", "permuted-digits/single", "--seeds", "0", "1", "2", "--jobs", "2"]
    command += ["--set", "epochs=10000", "--checkpoint-seconds", "1e9", "--out", str(tmp_path)]
    main = "from gradproj.experiments.cli import main; raise SystemExit(main())"
    parent = subprocess.Popen(
        [sys.executable, "-c", main, *command], stdout=subprocess.PIPE, text=True
    )
    runs = [tmp_path / "permuted-digits" / "single,epochs=10000" / f"seed-{i}" for i in range(3)]
    try:
        wait_for(lambda: all((run / "steps.jsonl").exists() for run in runs[:2]), parent)
        parent.send_signal(number)
        if number == signal.SIGKILL:
            wait_for(lambda: all((run / "checkpoint.pt").exists() for run in runs[:2]))
        # Ends only when no process has its other end any more: none is left behind.
        out, _ = parent.communicate(timeout=HANGING)
    finally:
        parent.kill()
    assert [(run / "checkpoint.pt").exists() for run in runs] == [True, True, False]
    if number != signal.SIGKILL:
        assert parent.returncode == 128 + number
        assert "3 interrupted" in out
        assert "continue with the same command and --resume" in out


def test_a_single_run_stays_in_this_process_with_the_same_result(tmp_path):
    events = []
    (outcome,) = execute_all([job("one", tmp_path)], events.append)
    assert outcome.kind == "finished"
    assert [e.task for e in events if e.kind == "task"] == [0, 1]
    two = [job("two", tmp_path), job("three", tmp_path)]
    execute_all(two, events.append, workers=2)
    assert matrix(tmp_path / "one") == matrix(tmp_path / "two") == matrix(tmp_path / "three")


def test_an_unforeseen_error_keeps_its_traceback(tmp_path, monkeypatch):
    from gradproj.experiments.runs.grid import worker

    def broken(*_args, **_options):
        raise ZeroDivisionError("oops")

    monkeypatch.setattr(worker, "run", broken)
    (outcome,) = execute_all([job("one", tmp_path)], lambda _: None)
    assert outcome.kind == "failed"
    assert "ZeroDivisionError: oops" in outcome.message
    assert "Traceback" in outcome.message


def test_steps_are_throttled_and_the_rest_is_not():
    passed = []
    report = throttled(passed.append, "name", interval=1000.0)
    for kind in ("step", "step", "task", "step", "finished"):
        report(Event(kind))
    assert [e.kind for e in passed] == ["step", "task", "finished"]
    assert {e.run for e in passed} == {"name"}
