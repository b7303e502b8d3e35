"""Progress of runs in terminals, notebooks and logs, and the time that they still take."""

import math
import re

import pytest
from rich.console import Console

from gradproj.experiments.cli.display import (
    LiveDisplay,
    NotebookDisplay,
    PlainDisplay,
    make_display,
)
from gradproj.experiments.cli.estimate import Estimate, GridEstimate
from gradproj.experiments.runs.events import Event

EVENTS = [
    Event("step", "run", task=0, tasks=2, step=5, loss=1.5, fraction=0.25),
    Event("task", "run", task=0, tasks=2, step=10, loss=1.25, accuracy=0.75, fraction=0.5),
    Event("finished", "run", message="ACC 0.7500"),
]


def test_plain_lines_when_not_a_terminal():
    console = Console(force_terminal=False, width=200)
    display = make_display(["run"], console)
    assert isinstance(display, PlainDisplay)
    with console.capture() as capture, display:
        for event in EVENTS:
            display(event)
    assert capture.get().splitlines() == [
        "run: task 1/2, step 10, loss 1.250, accuracy 0.7500",
        "run: finished ACC 0.7500",
    ]


def test_the_time_left_counts_from_where_a_run_went_on(monkeypatch):
    console = Console(force_terminal=False, width=200)
    display, now = PlainDisplay(["run"], console), iter([100.0, 130.0])
    monkeypatch.setattr("gradproj.experiments.cli.display.time.monotonic", lambda: next(now))
    with console.capture() as capture:
        display(Event("step", "run", fraction=0.5))
        display(Event("task", "run", fraction=0.8))
    assert "about 20 s left" in capture.get()


def test_a_long_task_is_heard_of_every_minute(monkeypatch):
    console = Console(force_terminal=False, width=200)
    display, now = PlainDisplay(["run"], console), iter([0.0, 59.0, 61.0, 100.0, 6000.0])
    monkeypatch.setattr("gradproj.experiments.cli.display.time.monotonic", lambda: next(now))
    with console.capture() as capture:
        for step, fraction in enumerate([0.0, 0.01, 0.02, 0.03]):
            display(Event("step", "run", tasks=2, step=step, loss=1.5, fraction=fraction))
        display(Event("task", "run", tasks=2, step=9, loss=1.5, accuracy=math.nan, fraction=0.5))
    assert capture.get().splitlines() == [
        "run: task 1/2, step 2, loss 1.500, about 50 min left",
        "run: task 1/2, step 9, loss 1.500, about 1.7 h left",
    ]


def test_short_tasks_share_a_line(monkeypatch):
    console = Console(force_terminal=False, width=200)
    display, now = PlainDisplay(["run"], console), iter([0.0, 1.0, 9.0, 11.0, 12.0])
    monkeypatch.setattr("gradproj.experiments.cli.display.time.monotonic", lambda: next(now))
    with console.capture() as capture:
        for task in range(4):
            display(Event("task", "run", task=task, tasks=5, step=task + 1, loss=1.5, accuracy=0.5))
        display(Event("finished", "run"))
    words = [line.split(",")[0] for line in capture.get().splitlines()]
    assert words == ["run: task 1/5", "run: task 4/5", "run: finished"]


def test_plain_lines_on_a_terminal_that_cannot_move_its_cursor(monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    assert isinstance(make_display(["run"], Console(force_terminal=True)), PlainDisplay)


def test_live_bars_on_a_terminal(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    console = Console(force_terminal=True, width=200)
    display = make_display(["run"], console)
    assert isinstance(display, LiveDisplay)
    with console.capture() as capture, display:
        for event in EVENTS:
            display(event)
            display.refresh()
    assert "task 1/2 step 5 loss 1.500" in capture.get()
    assert "run: finished ACC 0.7500" in capture.get()


def test_a_notice_is_shown_and_does_not_end_a_run(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    for terminal in (True, False):
        console = Console(force_terminal=terminal, width=200)
        with console.capture() as capture, make_display(["run"], console) as display:
            display(Event("notice", "run", message="resumes from step 3"))
            if isinstance(display, LiveDisplay):
                assert display._ended == 0
        assert "run: notice resumes from step 3" in capture.get()


def test_a_long_name_leaves_room_for_the_bar_and_keeps_its_seed():
    run = "split-digits/ours,options.strength=0.25,memory.batch=0/seed-10"
    console = Console(force_terminal=True, width=80)
    with console.capture() as capture, LiveDisplay([run], console) as display:
        display(Event("step", run, task=11, tasks=20, step=2993, loss=1.5, fraction=0.4))
        display.refresh()
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", capture.get())
    assert re.search(r"ours,op…/seed-10 ━+[╸╺]?━+ +task 12/20 step 2993 loss 1.500", text)


def test_a_log_says_at_least_once_per_minute_that_a_run_evaluates(monkeypatch):
    console = Console(force_terminal=False, width=200)
    display, now = PlainDisplay(["run"], console), iter([0.0, 61.0])
    monkeypatch.setattr("gradproj.experiments.cli.display.time.monotonic", lambda: next(now))
    with console.capture() as capture:
        display(Event("step", "run", tasks=2))
        display(Event("evaluation", "run", tasks=2, step=10, fraction=0.5))
    assert capture.get() == "run: task 1/2, evaluating, about 61 s left\n"


def test_a_notebook_gets_one_line_that_is_rewritten(monkeypatch, capsys):
    console = Console(force_jupyter=True)
    display = make_display(["run"], console)
    assert isinstance(display, NotebookDisplay)
    now = iter([0.0, 0.1, 1.0, 2.0])
    monkeypatch.setattr("gradproj.experiments.cli.display.time.monotonic", lambda: next(now))
    with display:
        for event in (EVENTS[0], *EVENTS):
            display(event)
    text = capsys.readouterr().out
    *rewritten, last = text.split("\r")[1:]
    assert [line.rstrip() for line in rewritten] == [
        "run: task 1/2, step 5, loss 1.500",
        "run: task 1/2, step 10, loss 1.250, accuracy 0.7500, about 2 s left",
    ]
    # The last line covers the longer one before it.
    assert last == "run: finished ACC 0.7500".ljust(len(rewritten[-1])) + "\n"


def test_live_bars_show_that_a_run_evaluates_and_all_runs_together(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    console = Console(force_terminal=True, width=120)
    runs = ["a/b/seed-0", "a/b/seed-1"]
    now = iter([0.0, 30.0, 40.0])
    monkeypatch.setattr("gradproj.experiments.cli.display.time.monotonic", lambda: next(now))
    display = LiveDisplay(runs, console)
    with console.capture() as capture, display:
        display(Event("step", runs[0], tasks=2, step=1))
        display(Event("evaluation", runs[0], tasks=2, step=10, fraction=0.5))
        display.refresh()
    assert "task 1/2, evaluating" in capture.get()
    with console.capture() as capture, display:
        display(Event("task", runs[0], tasks=2, step=10, accuracy=0.5, fraction=0.5))
    # Training takes 30 s for the rest of this run and 60 s for the other, an evaluation 10 s.
    assert re.search(r"all runs.*0 of 2 ended +about 2 min left", capture.get())


def test_evaluations_count_as_often_as_they_still_come():
    estimate = Estimate()
    for now, kind, task, fraction in [
        (0.0, "evaluation", 0, 0.0),
        (5.0, "step", 0, 0.0),
        (15.0, "evaluation", 0, 0.25),
        (20.0, "task", 0, 0.25),
    ]:
        estimate.update(Event(kind, task=task, tasks=4, fraction=fraction), now)
    # 10 s per quarter of the training, and 5 s per evaluation.
    assert estimate.left() == pytest.approx(3 * 10 + 3 * 5)
    assert estimate.total() == pytest.approx(4 * 10 + 4 * 5)


def test_the_first_second_predicts_nothing():
    estimate = Estimate()
    estimate.update(Event("step", tasks=1, fraction=0.0), 0.0)
    estimate.update(Event("step", tasks=1, fraction=0.001), 0.9)
    assert estimate.left() is None
    estimate.update(Event("step", tasks=1, fraction=0.1), 1.5)
    assert estimate.left() == pytest.approx(13.5)


def test_runs_of_several_workers_share_the_remaining_time():
    estimates = GridEstimate(["a/seed-0", "a/seed-1", "a/seed-2", "a/seed-3"])
    for run in ("a/seed-0", "a/seed-1"):
        estimates.update(Event("step", run, fraction=0.0), 0.0)
        estimates.update(Event("step", run, fraction=0.5), 10.0)
    # 10 s for each of two runs, 20 s for each of the waiting ones, two at a time.
    assert estimates.describe() == "about 30 s left"
    assert estimates.fraction() == 1.0
    for run in ("a/seed-0", "a/seed-1", "a/seed-2"):
        estimates.end(run)
    assert estimates.describe() == "about 20 s left"
