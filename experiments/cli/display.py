"""How runs are shown while they go on: live bars, or lines if there is no terminal."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Protocol, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from gradproj.experiments.runs.events import Event

__all__ = ["Display", "LiveDisplay", "PlainDisplay", "make_display"]


class Display(Protocol):
    """Shows the events of many runs."""

    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None: ...
    def __call__(self, event: Event) -> None:
        """Show one event."""


def make_display(runs: Sequence[str], console: Console | None = None) -> Display:
    """Choose live bars for a terminal that can move its cursor, and plain lines otherwise."""
    console = console or Console()
    live = console.is_terminal and not console.is_dumb_terminal
    return LiveDisplay(runs, console) if live else PlainDisplay(console)


class PlainDisplay:
    """One line whenever a task or a run ends, and every minute of a run in between."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._started: dict[str, tuple[float, float]] = {}
        self._told: dict[str, float] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        pass

    def __call__(self, event: Event) -> None:
        """Print a line, if the event deserves one."""
        # A run that goes on has done a part before it was first heard of.
        now = time.monotonic()
        start, before = self._started.setdefault(event.run, (now, event.fraction))
        told = self._told.setdefault(event.run, now)
        if event.kind == "step" and now - told < 60:
            return
        self._told[event.run] = now
        if event.kind in ("step", "task"):
            done = event.fraction - before
            left = (now - start) / done * (1 - event.fraction) if done else 0.0
            parts = [f"task {event.task + 1}/{event.tasks}", f"step {event.step}"]
            parts.append(f"loss {float(event.loss):.3f}")
            # A method that learns at the end alone has nothing to measure before.
            if event.kind == "task" and not math.isnan(event.accuracy):
                parts.append(f"accuracy {event.accuracy:.4f}")
            parts.append(f"about {_duration(left)} left")
            self._print(f"{event.run}: {', '.join(parts)}")
        else:
            self._print(f"{event.run}: {event.kind} {event.message}".rstrip())

    def _print(self, line: str) -> None:
        self._console.print(line, highlight=False, markup=False, soft_wrap=True)


class LiveDisplay:
    """A bar for each run in progress: task, step, loss, accuracy so far, time left."""

    def __init__(self, runs: Sequence[str], console: Console) -> None:
        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=10),
            TextColumn("{task.fields[state]}", markup=False),
            TimeRemainingColumn(),
            console=console,
        )
        # All runs of one benchmark: its name would only take the place of the bars.
        shared = {run.partition("/")[0] for run in runs}
        self._prefix = f"{shared.pop()}/" if len(shared) == 1 else ""
        # What is left of a line beside the bar, the longest state and the time.
        self._room = max(console.width - 64, 16)
        self._overall = self._progress.add_task("all runs", total=len(runs), state="")
        self._bars: dict[str, TaskID] = {}
        self._accuracy: dict[str, str] = {}
        self._ended = 0

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        self._progress.stop()

    def refresh(self) -> None:
        """Draw at once; otherwise the bars are drawn several times a second."""
        self._progress.refresh()

    def __call__(self, event: Event) -> None:
        """Move the bar of the event's run."""
        if event.run not in self._bars:
            name = _shortened(event.run.removeprefix(self._prefix), self._room)
            self._bars[event.run] = self._progress.add_task(name, total=1.0, state="")
        bar = self._bars[event.run]
        if event.kind == "step":
            seen = self._accuracy.get(event.run, "")
            state = f"task {event.task + 1}/{event.tasks} step {event.step}"
            state += f" loss {float(event.loss):.3f}{seen}"
            self._progress.update(bar, completed=event.fraction, state=state)
        elif event.kind == "task":
            if not math.isnan(event.accuracy):
                self._accuracy[event.run] = f" acc {event.accuracy:.3f}"
        else:
            if event.kind != "notice":
                self._ended += 1
                self._progress.update(bar, visible=False)
                self._progress.update(self._overall, completed=self._ended)
            self._progress.console.print(
                f"{event.run}: {event.kind} {event.message}".rstrip(), highlight=False, markup=False
            )


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"


def _shortened(run: str, room: int) -> str:
    """Cut a long name before its seed, which tells it from its neighbours."""
    entry, slash, seed = run.rpartition("/")
    spare = max(room - len(slash + seed) - 1, 1)
    return run if len(run) <= room else f"{entry[:spare]}…{slash}{seed}"
