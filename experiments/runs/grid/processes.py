"""A grid of runs in processes: one per run, and as many at a time as there are cores."""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import signal
import sys
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from typing import Any

from gradproj.experiments.runs.events import Event
from gradproj.experiments.runs.grid.progress import Progress
from gradproj.experiments.runs.grid.server import WorkerErrors, start_server
from gradproj.experiments.runs.grid.worker import Job, Outcome, execute
from gradproj.experiments.runs.signals import deferred_signals

__all__ = ["run_in_processes"]

# Exit codes of a process that was killed from outside.
KILLED = (-signal.SIGTERM, -signal.SIGKILL) if os.name != "nt" else ()


def run_in_processes(
    jobs: Sequence[Job], show: Callable[[Event], None], workers: int | None = None
) -> list[Outcome]:
    """Execute each job in its own process and return the outcomes in order.

    A run that crashes does not affect the others. A run whose process is killed, for example
    because memory ran out, is started again from its last checkpoint (see `Progress`). At Ctrl-C
    or SIGTERM, or if this process is killed, each run writes a checkpoint after its next step and
    stops.
    """
    context, errors = process_context()
    workers = workers or os.cpu_count() or 1
    waiting = deque(jobs)
    # One pipe per process: a process killed while it writes would block a queue that all share.
    running: dict[Any, tuple[Job, BaseProcess]] = {}
    sent: dict[str, Outcome] = {}
    progress = Progress(show)
    # Nothing is sent through this pipe. Closing this end, or the death of this process, stops the
    # workers. A signal would not do: Ctrl-C reaches them from the terminal as well.
    watched, lifeline = context.Pipe(duplex=False)
    try:
        with deferred_signals(lifeline.close):
            while waiting or running:
                while lifeline.closed and waiting:
                    job = waiting.popleft()
                    progress.end(job, Outcome(job.name, "interrupted", "not started"))
                while waiting and len(running) < workers:
                    job = waiting.popleft()
                    receiver, sender = context.Pipe(duplex=False)
                    process = context.Process(
                        target=_work, args=(job, sender, watched), name=job.name
                    )
                    try:
                        process.start()
                    except EOFError:
                        # Ctrl-C ended the server that processes are forked from.
                        if not lifeline.closed:
                            raise
                        progress.end(job, Outcome(job.name, "interrupted", "not started"))
                        continue
                    sender.close()  # Otherwise the pipe would not end with the process.
                    running[receiver] = job, process
                for receiver in wait(list(running)):
                    item = _next(receiver)
                    if isinstance(item, Outcome):
                        sent[item.name] = item
                    elif item is not None:
                        progress.hear(item)
                    else:
                        job, process = running.pop(receiver)
                        process.join()
                        outcome, lost = _ended(
                            job,
                            sent.pop(job.name, None),
                            process.exitcode,
                            errors.take(),
                            stopped=lifeline.closed,
                        )
                        if again := progress.end(job, outcome, lost):
                            waiting.appendleft(again)
    except KeyboardInterrupt:  # the second Ctrl-C
        for _, process in running.values():
            process.kill()
        raise
    finally:
        lifeline.close()
        watched.close()
        for receiver in running:
            receiver.close()
    return progress.outcomes(jobs)


def _next(receiver: Any) -> Event | Outcome | None:
    """Receive an item from a process, or None if the process has ended, even within an item."""
    try:
        item: Event | Outcome = receiver.recv()
    except (EOFError, OSError):
        receiver.close()
        return None
    return item


def _work(job: Job, sender: Any, watched: Any) -> None:
    faulthandler.enable()  # If a signal kills it, its standard error says where.
    # The lifeline stops the run at Ctrl-C; an exception would only leave a traceback.
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def send(item: Event | Outcome) -> None:
        # If the parent is gone, the run still has to write its checkpoint.
        with suppress(BrokenPipeError):
            sender.send(item)

    send(execute(job, send, should_stop=lambda: bool(wait([watched], 0))))


def _ended(
    job: Job, sent: Outcome | None, code: int | None, errors: str, *, stopped: bool
) -> tuple[Outcome, str]:
    """Return how a process ended, and why it was lost; "" if it was not killed.

    Its standard error, for example warnings, is passed on or becomes part of the outcome.
    """
    if sent is None and stopped:  # A signal reached it too, before its first step.
        sent = Outcome(job.name, "interrupted", "stopped; --resume continues it")
    terminated = sent is not None and sent.kind == "interrupted" and not stopped
    killed = sent is None and code in KILLED
    if errors and (sent or killed):
        print(errors, file=sys.stderr)
    if sent is not None:
        return sent, "SIGTERM" if terminated else ""
    message = f"its process ended with exit code {code}; --resume continues it"
    failed = Outcome(job.name, "failed", f"{message}\n{errors}".rstrip())
    return failed, f"exit code {code}" if killed else ""


def process_context() -> tuple[Any, WorkerErrors]:
    """Return a context that forks processes from a server with torch loaded, if the system can."""
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = "1"
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn"), WorkerErrors()
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["gradproj.experiments.runs.grid.preloaded"])
    return context, start_server()
