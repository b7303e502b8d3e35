"""The same grid of runs on a Ray cluster, or on a local Ray."""

from __future__ import annotations

import logging
import queue
from collections.abc import Callable, Sequence
from typing import Any

from gradproj.experiments.errors import RunError
from gradproj.experiments.grid import Job, Outcome, execute
from gradproj.experiments.progress import Event

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

    local: dict[str, Any] = {} if address else {"num_cpus": workers, "include_dashboard": False}
    ray.init(address=address, logging_level=logging.ERROR, log_to_driver=False, **local)
    try:
        events: Any = Queue()
        task = ray.remote(num_cpus=1, max_retries=0)(_work)
        references = {task.remote(job, events): job for job in jobs}
        outcomes: dict[str, Outcome] = {}
        while references:
            done, _ = ray.wait(list(references), timeout=0.2)
            _drain(events, show)
            for reference in done:
                job = references.pop(reference)
                outcomes[job.name] = _outcome(ray, reference, job, show)
        return [outcomes[job.name] for job in jobs]
    finally:
        ray.shutdown()


def _work(job: Job, events: Any) -> Outcome:
    return execute(job, events.put)


def _outcome(ray: Any, reference: Any, job: Job, show: Callable[[Event], None]) -> Outcome:
    try:
        outcome: Outcome = ray.get(reference)
    except ray.exceptions.RayError as error:
        outcome = Outcome(job.name, "failed", f"its Ray worker was lost: {error}")
        show(Event(kind="failed", run=job.name, message=outcome.message))
    return outcome


def _drain(events: Any, show: Callable[[Event], None]) -> None:
    while True:
        try:
            show(events.get(block=False))
        except queue.Empty:
            return
