"""Many runs: one process per run, as many at a time as there are cores."""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import signal
import sys
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from typing import Any

from gradproj.experiments.runs.events import Event
from gradproj.experiments.runs.grid.server import WorkerErrors, start_server
from gradproj.experiments.runs.grid.worker import Job, Outcome, execute
from gradproj.experiments.runs.signals import deferred_signals

__all__ = ["Retries", "run_in_processes"]

# How often a run is started again whose process was killed from outside, as for want of memory.
RETRIES = 3
KILLED = (-signal.SIGTERM, -signal.SIGKILL) if os.name != "nt" else ()


def run_in_processes(
    jobs: Sequence[Job], show: Callable[[Event], None], workers: int | None = None
) -> list[Outcome]:
    """Do all jobs, each in its own process, and return their outcomes in order.

    A process of its own for each run means that one that crashes, or is killed for want of
    memory, leaves the others alone. It is started again from its last checkpoint, up to `RETRIES`
    times. At Ctrl-C or SIGTERM, or if this process is killed, each run writes a checkpoint after
    its next step and stops.
    """
    context, errors = process_context()
    workers = workers or os.cpu_count() or 1
    waiting = deque(jobs)
    # A pipe each: with one queue for all, a process killed while it writes would block the others.
    running: dict[Any, tuple[Job, BaseProcess]] = {}
    retries = Retries(show)
    outcomes: dict[str, Outcome] = {}
    # Nothing is ever sent through this pipe. It ends when our end is closed, by us or by our death,
    # and unlike a signal it can tell a process twice without harm: Ctrl-C reaches them all anyway.
    watched, lifeline = context.Pipe(duplex=False)
    try:
        with deferred_signals(lifeline.close):
            while waiting or running:
                while lifeline.closed and waiting:
                    name = waiting.popleft().name
                    outcomes[name] = Outcome(name, "interrupted", "not started")
                while waiting and len(running) < workers:
                    job = waiting.popleft()
                    heard, told = context.Pipe(duplex=False)
                    process = context.Process(
                        target=_work, args=(job, told, watched), name=job.name
                    )
                    try:
                        process.start()
                    except EOFError:
                        # Ctrl-C ended the server that processes are forked from.
                        if not lifeline.closed:
                            raise
                        outcomes[job.name] = Outcome(job.name, "interrupted", "not started")
                        continue
                    told.close()  # or the pipe would not end with the process
                    running[heard] = job, process
                for heard in wait(list(running)):
                    item = _next(heard)
                    if isinstance(item, Outcome):
                        outcomes[item.name] = item
                    elif item is not None:
                        retries.hear(item)
                    else:
                        job, process = running.pop(heard)
                        process.join()
                        said, code = errors.take(), process.exitcode
                        killed = code in KILLED and not lifeline.closed
                        if job.name in outcomes:
                            _print(said)
                        elif again := retries.next(job, f"exit code {code}", killed):
                            waiting.appendleft(again)
                            _print(said)
                        else:
                            outcome = _lost(job, code, said, stopped=lifeline.closed)
                            outcomes[job.name] = outcome
                            show(Event(kind=outcome.kind, run=job.name, message=outcome.message))
    except KeyboardInterrupt:  # the second Ctrl-C
        for _, process in running.values():
            process.kill()
        raise
    finally:
        lifeline.close()
        watched.close()
        for heard in running:
            heard.close()
    return [outcomes[job.name] for job in jobs]


def _next(heard: Any) -> Event | Outcome | None:
    """Receive what a process sent; None if it has ended, perhaps in the middle of a word."""
    try:
        item: Event | Outcome = heard.recv()
    except (EOFError, OSError):
        heard.close()
        return None
    return item


def _work(job: Job, told: Any, watched: Any) -> None:
    faulthandler.enable()  # If it dies of a signal, its errors say where.
    # The lifeline tells of Ctrl-C; an exception anywhere would only leave a traceback.
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def send(item: Event | Outcome) -> None:
        # If nobody listens any more, the run has yet to write its checkpoint.
        with suppress(BrokenPipeError):
            told.send(item)

    send(execute(job, send, should_stop=lambda: bool(wait([watched], 0))))


def _print(said: str) -> None:
    """Pass on what a worker wrote to its standard error, such as warnings."""
    if said:
        print(said, file=sys.stderr)


def _lost(job: Job, code: int | None, said: str, *, stopped: bool) -> Outcome:
    if stopped:  # by a signal that reached it too, before its first step
        return Outcome(job.name, "interrupted", "stopped; --resume continues it")
    message = f"its process ended with exit code {code}; --resume continues it"
    return Outcome(job.name, "failed", f"{message}\n{said}".rstrip())


class Retries:
    """Passes events on, and says how a run whose process was lost is done again."""

    def __init__(self, show: Callable[[Event], None]) -> None:
        self._show = show
        self._begun: set[str] = set()
        self._left: dict[str, int] = {}

    def hear(self, event: Event) -> None:
        """Pass an event on."""
        if event.kind in ("step", "task"):
            self._begun.add(event.run)
        self._show(event)

    def next(self, job: Job, why: str, killed: bool) -> Job | None:
        """Return the job that continues this one; None if it was not killed, or too often."""
        left = self._left.setdefault(job.name, RETRIES)
        if not killed or not left:
            return None
        self._left[job.name] -= 1
        number = f"{RETRIES - left + 1} of {RETRIES}"
        message = f"its process was killed ({why}); it goes on from its last checkpoint ({number})"
        self._show(Event(kind="notice", run=job.name, message=message))
        # What a run has begun must not be started over; what it has not may still have to be.
        force = job.arguments.get("force", False) and job.name not in self._begun
        return replace(job, arguments={**job.arguments, "resume": True, "force": force})


def process_context() -> tuple[Any, WorkerErrors]:
    """Fork from a server that has torch loaded, where there is one: runs then start at once."""
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = "1"
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn"), WorkerErrors()
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["gradproj.experiments.runs.runner"])
    return context, start_server()
