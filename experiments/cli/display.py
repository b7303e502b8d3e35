"""Progress of runs: live bars in a terminal, one line in a notebook, lines in a log file."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Protocol, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from gradproj.experiments.cli.estimate import GridEstimate, format_duration
from gradproj.experiments.runs.events import ENDINGS, Event

__all__ = ["Display", "LiveDisplay", "NotebookDisplay", "PlainDisplay", "make_display"]


class Display(Protocol):
    """A context manager that shows the events of many runs."""

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
    """Choose the display that suits the console.

    Terminals that can move their cursor get live bars, and notebooks one line that is rewritten.
    Everything else, such as a log file, gets plain lines.
    """
    console = console or Console()
    if console.is_jupyter:
        return NotebookDisplay(runs)
    live = console.is_terminal and not console.is_dumb_terminal
    return LiveDisplay(runs, console) if live else PlainDisplay(runs, console)


class _Lines:
    """The base of the displays without bars: turns events into lines of text."""

    def __init__(self, runs: Sequence[str]) -> None:
        self._estimates = GridEstimate(runs)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        pass

    def _line(self, event: Event, now: float) -> str:
        if event.kind in ENDINGS or event.kind == "notice":
            if event.kind in ENDINGS:
                self._estimates.end(event.run)
            return f"{event.run}: {event.kind} {event.message}".rstrip()
        left = self._estimates.update(event, now).left()
        parts = [_state(event)]
        # A method that learns only at the end has nothing to measure before.
        if event.kind == "task" and not math.isnan(event.accuracy):
            parts.append(f"accuracy {event.accuracy:.4f}")
        if left is not None and event.fraction < 1:
            parts.append(f"about {format_duration(left)} left")
        return f"{event.run}: {', '.join(parts)}"


class PlainDisplay(_Lines):
    """Prints a line when a task or a run ends, and one per minute of a run in between.

    Tasks that take less than ten seconds share a line, so that short runs do not fill the log.
    """

    def __init__(self, runs: Sequence[str], console: Console) -> None:
        super().__init__(runs)
        self._console = console
        self._told: dict[str, float] = {}

    def __call__(self, event: Event) -> None:
        """Print a line if the event is due for one."""
        now = time.monotonic()
        line = self._line(event, now)
        told = self._told.setdefault(event.run, now)
        if event.kind in ("step", "evaluation") and now - told < 60:
            return
        if event.kind == "task" and event.task > 0 and now - told < 10:
            return
        self._told[event.run] = now
        self._console.print(line, highlight=False, markup=False, soft_wrap=True)


class NotebookDisplay(_Lines):
    """Rewrites one line of plain text, which every notebook can show.

    Live bars would need escape sequences or widgets. A carriage return works everywhere.
    """

    def __init__(self, runs: Sequence[str]) -> None:
        super().__init__(runs)
        self._told = -math.inf
        self._length = 0

    def __call__(self, event: Event) -> None:
        """Rewrite the line twice per second; keep it if a run has ended."""
        now = time.monotonic()
        line = self._line(event, now)
        final = event.kind in ENDINGS or event.kind == "notice"
        if not final and now - self._told < 0.5:
            return
        self._told = now
        # Spaces cover what is left of a longer line.
        sys.stdout.write("\r" + line.ljust(self._length) + ("\n" if final else ""))
        sys.stdout.flush()
        self._length = 0 if final else len(line)


class LiveDisplay:
    """Shows one bar per running run: task, step, loss, accuracy so far and remaining time."""

    def __init__(self, runs: Sequence[str], console: Console) -> None:
        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=10),
            TextColumn("{task.fields[state]}", markup=False),
            TextColumn("{task.fields[left]}", markup=False),
            console=console,
        )
        # If all runs are of one benchmark, its name would only take the space of the bars.
        shared = {run.partition("/")[0] for run in runs}
        self._prefix = f"{shared.pop()}/" if len(shared) == 1 else ""
        # The space that is left beside the bar, the longest state and the time.
        self._room = max(console.width - 64, 16)
        self._count = len(runs)
        several = self._count > 1
        self._overall = self._progress.add_task(
            "all runs", total=len(runs), state="", left="", visible=several
        )
        self._estimates = GridEstimate(runs)
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
        """Draw at once; otherwise the bars are drawn several times per second."""
        self._progress.refresh()

    def __call__(self, event: Event) -> None:
        """Move the bar of the event's run."""
        if event.run not in self._bars:
            name = _shortened(event.run.removeprefix(self._prefix), self._room)
            self._bars[event.run] = self._progress.add_task(name, total=1.0, state="", left="")
        if event.kind in ENDINGS or event.kind == "notice":
            if event.kind in ENDINGS:
                self._end(event)
            self._progress.console.print(
                f"{event.run}: {event.kind} {event.message}".rstrip(), highlight=False, markup=False
            )
        else:
            self._move(event)
        self._progress.update(
            self._overall,
            completed=self._ended + self._estimates.fraction(),
            state=f"{self._ended} of {self._count} ended",
            left=self._estimates.describe(),
        )

    def _move(self, event: Event) -> None:
        left = self._estimates.update(event, time.monotonic()).left()
        if event.kind == "task" and not math.isnan(event.accuracy):
            self._accuracy[event.run] = f" acc {event.accuracy:.3f}"
        self._progress.update(
            self._bars[event.run],
            completed=event.fraction,
            state=_state(event, ", " if event.kind == "evaluation" else " ")
            + self._accuracy.get(event.run, ""),
            left="" if left is None else f"about {format_duration(left)} left",
        )

    def _end(self, event: Event) -> None:
        self._estimates.end(event.run)
        self._ended += 1
        self._progress.update(self._bars[event.run], visible=False)


def _state(event: Event, separator: str = ", ") -> str:
    """Say what a run is doing."""
    if event.kind == "evaluation":
        return (
            "evaluating" if event.step == 0 else f"task {event.task + 1}/{event.tasks}, evaluating"
        )
    parts = [f"task {event.task + 1}/{event.tasks}", f"step {event.step}"]
    if not math.isnan(event.loss):
        parts.append(f"loss {float(event.loss):.3f}")
    return separator.join(parts)


def _shortened(run: str, room: int) -> str:
    """Cut a long name before its seed, which distinguishes it from its neighbours."""
    entry, slash, seed = run.rpartition("/")
    spare = max(room - len(slash + seed) - 1, 1)
    return run if len(run) <= room else f"{entry[:spare]}…{slash}{seed}"
