"""One job of a grid, executed in the calling process."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from gradproj.experiments.common.errors import ConfigError, RunError
from gradproj.experiments.methods.config import RunConfig
from gradproj.experiments.runs.events import Event, throttled
from gradproj.experiments.runs.runner import run
from gradproj.experiments.runs.signals import never

__all__ = ["Job", "Outcome", "execute"]


@dataclass(frozen=True)
class Job:
    """One run of a grid: its name for messages, and the arguments of `runner.run`."""

    name: str
    config: RunConfig
    folder: Path
    arguments: dict[str, Any]


@dataclass(frozen=True)
class Outcome:
    """How a job ended: the `kind` of its last `Event`, and the reason."""

    name: str
    kind: str
    message: str = ""


def execute(
    job: Job, send: Callable[[Event], None], should_stop: Callable[[], bool] = never
) -> Outcome:
    """Execute one job in this process with one thread; errors are returned as outcomes."""
    torch.set_num_threads(1)
    report = throttled(send, job.name)
    try:
        ran = run(job.config, job.folder, report=report, should_stop=should_stop, **job.arguments)
    except KeyboardInterrupt as stop:
        return Outcome(job.name, "interrupted", str(stop))
    except ConfigError as error:
        outcome = Outcome(job.name, "refused", str(error))
    except (RunError, OSError) as error:
        outcome = Outcome(job.name, "failed", str(error))
    except Exception as error:
        # Any other exception is a bug: keep its traceback, and let the other runs continue.
        where = traceback.format_exc()
        outcome = Outcome(job.name, "failed", f"{type(error).__name__}: {error}\n{where}")
    else:
        if ran:
            return Outcome(job.name, "finished")
        outcome = Outcome(job.name, "skipped", "finished before")
    report(Event(kind=outcome.kind, message=outcome.message))
    return outcome
