"""Handling of Ctrl-C and SIGTERM: work ends at a moment when its state can be saved."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = ["deferred_signals", "ended_at_once", "exit_code", "never", "without_interrupts"]

_last = signal.SIGINT


def exit_code() -> int:
    """Return the exit code of a process that a signal stopped: 128 plus the signal's number."""
    return 128 + _last


def never() -> bool:
    """Return False: never stop."""
    return False


@contextmanager
def ended_at_once(message: str) -> Iterator[None]:
    """End the process at Ctrl-C with one line; used while modules are imported.

    A KeyboardInterrupt could be raised anywhere inside them, and some libraries turn it into
    another exception.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(_number: int, _frame: FrameType | None) -> None:
        os.write(sys.__stderr__.fileno() if sys.__stderr__ else 2, f"{message}\n".encode())
        os._exit(130)

    previous = signal.signal(signal.SIGINT, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)


@contextmanager
def without_interrupts() -> Iterator[None]:
    """Block Ctrl-C; processes that are started inside inherit the blocked signal."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def deferred_signals(request_stop: Callable[[], None]) -> Iterator[None]:
    """Call `request_stop` on the first Ctrl-C or SIGTERM; a second one acts at once.

    Python delivers signals to the main thread only; in other threads this does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    names = (signal.SIGINT, signal.SIGTERM)
    previous = {name: signal.getsignal(name) for name in names}

    def restore() -> None:
        for name, handler in previous.items():
            signal.signal(name, handler)

    def handle(number: int, _frame: FrameType | None) -> None:
        global _last
        _last = signal.Signals(number)
        request_stop()
        restore()

    for name in names:
        signal.signal(name, handle)
    try:
        yield
    finally:
        restore()
