"""A grid of runs on a Ray cluster, or on a local Ray."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from gradproj.experiments.common.errors import RunError
from gradproj.experiments.runs.events import Event
from gradproj.experiments.runs.grid.progress import Progress
from gradproj.experiments.runs.grid.server import import_environment
from gradproj.experiments.runs.grid.worker import Job, Outcome, execute
from gradproj.experiments.runs.signals import deferred_signals

__all__ = ["run_on_ray"]

# Ray starts workers with a niceness of 15 above that of this process and ends those that do not
# register within 60 seconds. On a busy machine no worker would ever start.
LOCAL = {"worker_niceness": 0, "worker_register_timeout_seconds": 1200}


def run_on_ray(
    jobs: Sequence[Job],
    show: Callable[[Event], None],
    address: str | None = None,
    workers: int | None = None,
) -> list[Outcome]:
    """Execute all jobs as Ray tasks of one core each and return their outcomes in order.

    A run whose worker is lost is started again from its last checkpoint, see `Progress`. At
    Ctrl-C or SIGTERM each run writes a checkpoint after its next step and stops.

    Parameters
    ----------
    jobs : sequence of Job
        Their folders must be on storage that all machines share.
    show : callable
        Receives the events of all runs.
    address : str, optional
        Address of the cluster. Without it, a local Ray is started for the duration of the call.
    workers : int, optional
        Number of cores of the local Ray; all of them by default.
    """
    with _connected(address, workers) as ray:
        from ray.util.queue import Queue

        # If the process of the queue is lost, a new one starts with an empty queue.
        events: Any = Queue(actor_options={"max_restarts": -1})
        task = ray.remote(num_cpus=1, max_retries=0)(_work)
        running = {task.remote(job, events): job for job in jobs}
        progress = Progress(show)
        stop = threading.Event()
        cancelled = False
        with deferred_signals(stop.set):
            while running:
                if stop.is_set() and not cancelled:
                    # Raises KeyboardInterrupt in the workers, whose runs write checkpoints. The
                    # waiting tasks come first: a worker that is free would start one of them.
                    cancelled = True
                    for reference in reversed(running):
                        ray.cancel(reference)
                done, _ = ray.wait(list(running), timeout=0.2)
                _drain(events, progress.hear)
                for reference in done:
                    job = running.pop(reference)
                    outcome, lost = _outcome(ray, reference, job, stopped=cancelled)
                    if again := progress.end(job, outcome, lost):
                        running[task.remote(again, events)] = again
        return progress.outcomes(jobs)


@contextmanager
def _connected(address: str | None, workers: int | None) -> Iterator[Any]:
    try:
        import ray
    except ImportError as error:
        raise RunError("ray is not installed; pip install 'gradproj[ray]'") from error
    options: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": False}
    if not address:
        options |= {
            "num_cpus": workers,
            "include_dashboard": False,
            # The workers of a cluster have import paths of their own.
            "runtime_env": {"env_vars": import_environment()},
            "_system_config": LOCAL,
        }
    with _own_sigterm():
        ray.init(address=address, **options)
    try:
        yield ray
    finally:
        ray.shutdown()


@contextmanager
def _own_sigterm() -> Iterator[None]:
    """Keep the handler of SIGTERM: Ray's own would end the process with exit code 15."""
    handler = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, handler)


def _outcome(ray: Any, reference: Any, job: Job, *, stopped: bool) -> tuple[Outcome, str]:
    """Return how a task ended, and why its worker was lost; "" if it was not lost."""
    try:
        outcome: Outcome = ray.get(reference)
    except ray.exceptions.RayError as error:
        if stopped:  # perhaps before its first step
            return Outcome(job.name, "interrupted", "stopped; --resume continues it"), ""
        message = f"its Ray worker was lost: {error}"
        # Errors of the task itself would occur again, such as a module that cannot be imported.
        lost = "" if isinstance(error, ray.exceptions.RayTaskError) else type(error).__name__
        return Outcome(job.name, "failed", message), lost
    terminated = outcome.kind == "interrupted" and not stopped
    return outcome, "SIGTERM" if terminated else ""


def _work(job: Job, events: Any) -> Outcome:
    import ray

    sent: list[Any] = []

    def send(event: Event) -> None:
        # `Queue.put` would wait for its actor. Ray gives the core of a task that waits to another
        # one, so more runs than cores would start, and a cancellation could be lost in the wait.
        # The process of the queue may be lost; the run continues without it.
        sent[:] = [events.actor.put_nowait.remote(event)]

    outcome = execute(job, send)
    with suppress(Exception):
        ray.wait(sent, timeout=10)  # Events arrive in order: this is the last one.
    return outcome


def _drain(events: Any, show: Callable[[Event], None]) -> None:
    while True:
        try:
            event = events.get(block=False)
        except Exception:  # It is empty, or its process was lost.
            return
        show(event)
