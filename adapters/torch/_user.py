"""`User`: the thread that may use a projector at a time."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class User:
    """The one thread that may use a projector at a time.

    Attributes
    ----------
    lost : bool
        Whether gradients had been stored that a copy of the projector does not have.
    """

    def __init__(self, lost: bool = False) -> None:
        self.lost = lost
        self._thread: int | None = None
        self._lock = threading.Lock()

    def __getstate__(self) -> dict[str, bool]:
        return {"lost": self.lost}  # locks cannot be copied

    def __setstate__(self, state: dict[str, bool]) -> None:
        self.__init__(**state)  # type: ignore[misc]

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Raise if the projector is in use, or if another thread has stored gradients."""
        if not self._lock.acquire(blocking=False):
            raise RuntimeError(
                "this projector is inside a step already, in another thread or because a loss "
                "called it; use one projector and one model per thread"
            )
        try:
            if self._thread not in (None, threading.get_ident()):
                raise RuntimeError(
                    "another thread has stored gradients in this projector; use one projector and "
                    "one model per thread"
                )
            yield
        finally:
            self._lock.release()

    def claim(self) -> None:
        """Let only this thread use the projector until it is free again."""
        self._thread = threading.get_ident()

    def free(self) -> None:
        """Let any thread use the projector."""
        self.lost, self._thread = False, None
