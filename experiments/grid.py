"""Many runs: one process a run with one thread, as many at a time as there are cores; or Ray."""

from __future__ import annotations

import multiprocessing
import os
import queue
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from gradproj.experiments.config import RunConfig
from gradproj.experiments.progress import Event, ignore, throttled
from gradproj.experiments.schema import ConfigError
from gradproj.experiments.storage import RunError

__all__ = ["Job", "Outcome", "execute", "execute_all", "process_context", "run_in_processes"]


@dataclass(frozen=True)
class Job:
    """One run to be done, with its name for messages and the arguments of `runner.run`."""

    name: str
    config: RunConfig
    folder: Path
    arguments: dict[str, Any]


@dataclass(frozen=True)
class Outcome:
    """How a job ended: "finished", "skipped", "interrupted" or "failed", and why."""

    name: str
    kind: str
    message: str = ""


def execute(job: Job, send: Callable[[Event], None]) -> Outcome:
    """Do one job in this process with one thread; an error is an outcome, not an exception."""
    import torch

    from gradproj.experiments.runner import run

    torch.set_num_threads(1)
    report = throttled(send, job.name)
    try:
        ran = run(job.config, job.folder, report=report, **job.arguments)
    except KeyboardInterrupt as stop:
        return Outcome(job.name, "interrupted", str(stop))
    except (RunError, ConfigError, OSError) as error:
        outcome = Outcome(job.name, "failed", str(error))
    except Exception as error:
        # Anything else is a defect: keep where it came from, and let the other runs go on.
        where = traceback.format_exc()
        outcome = Outcome(job.name, "failed", f"{type(error).__name__}: {error}\n{where}")
    else:
        if ran:
            return Outcome(job.name, "finished")
        outcome = Outcome(job.name, "skipped", "finished before")
    report(Event(kind=outcome.kind, message=outcome.message))
    return outcome


def run_in_processes(
    jobs: Sequence[Job], show: Callable[[Event], None], workers: int | None = None
) -> list[Outcome]:
    """Do all jobs, each in its own process, and return their outcomes in order.

    A process of its own for each run means that one that crashes, or is killed for want of
    memory, is reported and leaves the others alone.
    """
    context = process_context()
    workers = workers or os.cpu_count() or 1
    waiting = deque(jobs)
    running: dict[str, BaseProcess] = {}
    outcomes: dict[str, Outcome] = {}
    events: Any = context.Queue()
    try:
        while waiting or running:
            while waiting and len(running) < workers:
                job = waiting.popleft()
                process = context.Process(target=_work, args=(job, events), name=job.name)
                process.start()
                running[job.name] = process
            _drain(events, show, outcomes)
            for name, process in list(running.items()):
                if not process.is_alive():
                    _drain(events, show, outcomes)
                    del running[name]
                    _close(name, process, show, outcomes)
    except KeyboardInterrupt:
        # Ctrl-C reaches the processes too, and each stops at its next step: wait for them.
        for name, process in running.items():
            process.join()
            outcomes.setdefault(name, Outcome(name, "interrupted", "stopped"))
        _drain(events, ignore, outcomes)
        for job in waiting:
            outcomes[job.name] = Outcome(job.name, "interrupted", "not started")
    finally:
        events.close()
        events.join_thread()
    return [outcomes[job.name] for job in jobs]


def _work(job: Job, events: Any) -> None:
    events.put(execute(job, events.put))


def _drain(
    events: Any, show: Callable[[Event], None], outcomes: dict[str, Outcome], wait: float = 0.1
) -> None:
    while True:
        try:
            item = events.get(timeout=wait)
        except queue.Empty:
            return
        if isinstance(item, Outcome):
            outcomes[item.name] = item
        else:
            show(item)


def _close(
    name: str, process: BaseProcess, show: Callable[[Event], None], outcomes: dict[str, Outcome]
) -> None:
    process.join()
    if name not in outcomes:
        message = f"its process ended with exit code {process.exitcode}; --resume continues it"
        outcomes[name] = Outcome(name, "failed", message)
        show(Event(kind="failed", run=name, message=message))


def process_context() -> Any:
    """Fork from a server that has torch loaded, where there is one: runs then start at once."""
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = "1"
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["gradproj.experiments.runner"])
    return context


def execute_all(
    jobs: Sequence[Job],
    show: Callable[[Event], None],
    *,
    engine: str = "processes",
    workers: int | None = None,
    address: str | None = None,
) -> list[Outcome]:
    """Do all jobs on the chosen engine; a single one stays in this process."""
    if engine == "ray":
        from gradproj.experiments.ray_grid import run_on_ray

        return run_on_ray(jobs, show, address, workers)
    if len(jobs) == 1:
        return [execute(jobs[0], show)]
    return run_in_processes(jobs, show, workers)
