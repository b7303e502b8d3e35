"""The same grid of runs on a Ray cluster, or on a local Ray."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from gradproj.experiments.common.errors import RunError
from gradproj.experiments.runs.events import Event
from gradproj.experiments.runs.grid.processes import Retries
from gradproj.experiments.runs.grid.server import import_environment
from gradproj.experiments.runs.grid.worker import Job, Outcome, execute
from gradproj.experiments.runs.signals import deferred_signals

__all__ = ["run_on_ray"]


def run_on_ray(
    jobs: Sequence[Job],
    show: Callable[[Event], None],
    address: str | None = None,
    workers: int | None = None,
) -> list[Outcome]:
    """Do all jobs as Ray tasks of one core each and return their outcomes in order.

    Parameters
    ----------
    jobs : sequence of Job
        Their folders must be on storage that all machines share.
    show : callable
        Is told of the events of all runs.
    address : str, optional
        The cluster; without it a Ray is started on this machine for the time of the call.
    workers : int, optional
        Cores of the local Ray; all of them by default.
    """
    try:
        import ray
        from ray.util.queue import Queue
    except ImportError as error:
        raise RunError("ray is not installed; pip install 'gradproj[ray]'") from error

    options: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": False}
    if not address:
        # The workers of a cluster have paths of their own.
        options |= {"num_cpus": workers, "include_dashboard": False,
                    "runtime_env": {"env_vars": import_environment()}}  # fmt: skip
    ray.init(address=address, **options)
    try:
        events: Any = Queue()
        task = ray.remote(num_cpus=1, max_retries=0)(_work)
        references = {task.remote(job, events): job for job in jobs}
        retries = Retries(show)
        outcomes: dict[str, Outcome] = {}
        stopped = False

        def stop() -> None:
            # Raises Ctrl-C in the workers: runs write a checkpoint after their next step.
            nonlocal stopped
            stopped = True
            for reference in list(references):
                ray.cancel(reference)

        with deferred_signals(stop):
            while references:
                done, _ = ray.wait(list(references), timeout=0.2)
                _drain(events, retries.hear)
                for reference in done:
                    job = references.pop(reference)
                    try:
                        outcomes[job.name] = ray.get(reference)
                    except ray.exceptions.TaskCancelledError:
                        outcomes[job.name] = Outcome(job.name, "interrupted", "stopped")
                    except ray.exceptions.RayError as error:
                        again = retries.next(job, type(error).__name__, not stopped)
                        if again is not None:
                            references[task.remote(again, events)] = again
                            continue
                        message = f"its Ray worker was lost: {error}"
                        outcomes[job.name] = Outcome(job.name, "failed", message)
                        show(Event(kind="failed", run=job.name, message=message))
        return [outcomes[job.name] for job in jobs]
    finally:
        ray.shutdown()


def _work(job: Job, events: Any) -> Outcome:
    def send(event: Event) -> None:
        # The process that passes events on may be lost; the run goes on without it.
        with suppress(Exception):
            events.put(event)

    return execute(job, send)


def _drain(events: Any, show: Callable[[Event], None]) -> None:
    while True:
        try:
            event = events.get(block=False)
        except Exception:  # It is empty, or the process that holds it was lost.
            return
        show(event)
