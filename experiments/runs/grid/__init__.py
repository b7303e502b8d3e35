"""Many runs: in processes of their own, or on Ray."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gradproj.experiments.runs.events import Event
from gradproj.experiments.runs.grid.processes import run_in_processes
from gradproj.experiments.runs.grid.ray import run_on_ray
from gradproj.experiments.runs.grid.worker import Job, Outcome, execute

__all__ = ["Job", "Outcome", "execute_all"]


def execute_all(
    jobs: Sequence[Job],
    show: Callable[[Event], None],
    *,
    executor: str = "processes",
    workers: int | None = None,
    address: str | None = None,
) -> list[Outcome]:
    """Execute all jobs on the chosen executor; a single job runs in this process."""
    if executor == "ray":
        return run_on_ray(jobs, show, address, workers)
    if len(jobs) == 1:
        return [execute(jobs[0], show)]
    return run_in_processes(jobs, show, workers)
