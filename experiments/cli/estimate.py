"""Predictions of the time that runs still take."""

from __future__ import annotations

from collections.abc import Sequence

from gradproj.experiments.runs.events import Event

__all__ = ["Estimate", "GridEstimate", "format_duration"]

# Seconds of training before the first prediction: the first steps are slower than the rest.
WARM_UP = 1.0


class Estimate:
    """Predicts the remaining time of one run.

    The remaining training continues at the mean speed so far. Each remaining evaluation takes as
    long as the last one. Time before the first event, such as that before a run was resumed, does
    not count.
    """

    def __init__(self) -> None:
        self.fraction = 0.0
        self._first = 0.0
        self._tasks = 1
        self._evaluations_left = 0
        self._training = 0.0
        self._evaluation = 0.0
        self._evaluating = False
        self._last: float | None = None

    def update(self, event: Event, now: float) -> None:
        """Take in an event of the kind "step", "evaluation" or "task"."""
        if self._last is None:
            self._first = event.fraction
        elif self._evaluating:
            self._evaluation = now - self._last
        else:
            self._training += now - self._last
        self._last, self._evaluating = now, event.kind == "evaluation"
        self.fraction, self._tasks = event.fraction, event.tasks
        self._evaluations_left = event.tasks - event.task - (event.kind == "task")

    def left(self) -> float | None:
        """Return the remaining seconds, or None if it is too early to tell."""
        speed = self._seconds_for_all()
        if speed is None:
            return None
        return speed * (1 - self.fraction) + self._evaluation * self._evaluations_left

    def total(self) -> float | None:
        """Return the seconds of the whole run, from its start."""
        speed = self._seconds_for_all()
        return None if speed is None else speed + self._evaluation * self._tasks

    def _seconds_for_all(self) -> float | None:
        """Return the seconds of training from the first to the last step."""
        done = self.fraction - self._first
        # A run that is done may have been shorter than the warm-up.
        if done <= 0 or (self._training < WARM_UP and self.fraction < 1):
            return None
        return self._training / done


class GridEstimate:
    """Predicts the remaining time of many runs, some of which have not started.

    A waiting run is expected to take as long as another seed of its configuration. While a
    configuration has not started, the prediction is a lower bound, because methods differ in cost
    by factors of ten and more.
    """

    def __init__(self, runs: Sequence[str]) -> None:
        self._waiting = set(runs)
        self._running: dict[str, Estimate] = {}
        self._known: dict[str, float] = {}

    def update(self, event: Event, now: float) -> Estimate:
        """Take in an event of a running run and return the estimate of that run."""
        self._waiting.discard(event.run)
        estimate = self._running.setdefault(event.run, Estimate())
        estimate.update(event, now)
        total = estimate.total()
        if total is not None:
            self._known[_configuration(event.run)] = total
        return estimate

    def end(self, run: str) -> None:
        """Take in that a run has ended."""
        self._waiting.discard(run)
        self._running.pop(run, None)

    def fraction(self) -> float:
        """Return the work done in the runs that have not ended, in units of one run."""
        return sum(estimate.fraction for estimate in self._running.values())

    def describe(self) -> str:
        """Say how long the runs still take, "" if it is too early to tell.

        Examples
        --------
        >>> estimates = GridEstimate(["a/b/seed-0", "a/b/seed-1", "a/c/seed-0"])
        >>> _ = estimates.update(Event("step", "a/b/seed-0", fraction=0.0), now=0.0)
        >>> _ = estimates.update(Event("step", "a/b/seed-0", fraction=0.5), now=20.0)
        >>> estimates.describe()
        'at least 60 s left'
        >>> estimates.end("a/c/seed-0")
        >>> estimates.describe()
        'about 60 s left'
        """
        seconds = [estimate.left() for estimate in self._running.values()]
        seconds += [self._known.get(_configuration(run)) for run in self._waiting]
        known = [each for each in seconds if each is not None]
        if not known:
            return ""
        # The longest run may take longer than an even share of all of them.
        left = max(sum(known) / max(len(self._running), 1), *known)
        return (
            f"{'about' if len(known) == len(seconds) else 'at least'} {format_duration(left)} left"
        )


def format_duration(seconds: float) -> str:
    """Write a duration in the unit that suits it.

    Examples
    --------
    >>> format_duration(42.3), format_duration(600), format_duration(30_000)
    ('42 s', '10 min', '8.3 h')
    """
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def _configuration(run: str) -> str:
    """Return the name of a run without its seed."""
    return run.rpartition("/")[0]
