"""Events that a run reports: steps, evaluations and its end."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from torch import Tensor

__all__ = ["ENDINGS", "Event", "ignore", "throttled"]

# The kinds of the last event of a run.
ENDINGS = ("finished", "skipped", "interrupted", "refused", "failed")


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened in a run.

    Attributes
    ----------
    kind : str
        "step", "evaluation" (begins), "task" (was trained and evaluated), "notice" (a message for
        the user), or how the run ended: "finished", "skipped" (was finished before),
        "interrupted", "refused" (its configuration cannot be used) or "failed".
    run : str
        The name of the run.
    fraction : float
        Share of the run's work that is done.
    """

    kind: str
    run: str = ""
    task: int = 0
    tasks: int = 1
    step: int = 0
    loss: Tensor | float = 0.0
    accuracy: float = 0.0
    fraction: float = 0.0
    message: str = ""


def throttled(
    send: Callable[[Event], None], run: str, interval: float = 0.2
) -> Callable[[Event], None]:
    """Pass on events under the name `run`, but at most one step per `interval` seconds.

    The loss is read from its device only for steps that are passed on.
    """
    last = -interval

    def report(event: Event) -> None:
        nonlocal last
        now = time.monotonic()
        if event.kind == "step" and now - last < interval:
            return
        last = now
        send(replace(event, run=run, loss=float(event.loss)))

    return report


def ignore(_: Event) -> None:
    """Ignore an event."""
