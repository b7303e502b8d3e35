"""Let Ctrl-C and SIGTERM end work at a good moment."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = ["deferred_signals", "never"]


def never() -> bool:
    """Ask for no stop."""
    return False


@contextmanager
def deferred_signals(request_stop: Callable[[], None]) -> Iterator[None]:
    """Call `request_stop` on the first Ctrl-C or SIGTERM; a second one acts at once, as ever.

    Only the main thread of a process gets signals; in any other nothing changes.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    names = (signal.SIGINT, signal.SIGTERM)
    previous = {name: signal.getsignal(name) for name in names}

    def restore() -> None:
        for name, handler in previous.items():
            signal.signal(name, handler)

    def handle(_number: int, _frame: FrameType | None) -> None:
        request_stop()
        restore()

    for name in names:
        signal.signal(name, handle)
    try:
        yield
    finally:
        restore()
