"""Events, restarts and outcomes of the runs of a grid, the same for every executor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from gradproj.experiments.runs.events import ENDINGS, Event
from gradproj.experiments.runs.grid.worker import Job, Outcome

__all__ = ["RETRIES", "Progress"]

# How often one run is started again, for example after the system ran out of memory.
RETRIES = 3


class Progress:
    """Passes events on, restarts runs whose process was lost, and collects the outcomes."""

    def __init__(self, show: Callable[[Event], None]) -> None:
        self._show = show
        self._begun: set[str] = set()
        self._ended: dict[str, Event] = {}
        self._restarts: dict[str, int] = {}
        self._outcomes: dict[str, Outcome] = {}

    def hear(self, event: Event) -> None:
        """Pass an event on, except "interrupted": only the executor knows if the run continues."""
        if event.kind == "interrupted":
            return
        if event.kind in ("step", "task"):
            self._begun.add(event.run)
        elif event.kind in ENDINGS:
            if event.kind == "skipped" and event.run in self._restarts:
                event = replace(event, kind="finished", message="before its process was killed")
            self._ended[event.run] = event
        self._show(event)

    def end(self, job: Job, outcome: Outcome, lost: str = "") -> Job | None:
        """Keep the outcome of a job, or return the job that continues it.

        Parameters
        ----------
        job : Job
        outcome : Outcome
            Used if the run is not started again.
        lost : str
            Why its process was lost. The run is then started again, at most `RETRIES` times,
            unless it had ended before.
        """
        restarts, ended = self._restarts.get(job.name, 0), self._ended.get(job.name)
        if lost and ended is None and restarts < RETRIES:
            self._restarts[job.name] = restarts + 1
            message = (
                f"its process was killed ({lost}); it continues from its last checkpoint "
                f"({restarts + 1} of {RETRIES})"
            )
            self._show(Event(kind="notice", run=job.name, message=message))
            # A run that has begun must not be started over. One that has not may still have to be.
            force = job.arguments.get("force", False) and job.name not in self._begun
            return replace(job, arguments={**job.arguments, "resume": True, "force": force})
        if ended is None:  # Its last event was withheld, or lost with its process.
            self._show(Event(kind=outcome.kind, run=job.name, message=outcome.message))
        elif ended.kind == "finished":
            outcome = Outcome(job.name, "finished")
        elif lost:
            outcome = Outcome(job.name, ended.kind, ended.message)
        self._outcomes[job.name] = outcome
        return None

    def outcomes(self, jobs: Sequence[Job]) -> list[Outcome]:
        """Return the outcomes in the order of `jobs`."""
        return [self._outcomes[job.name] for job in jobs]
