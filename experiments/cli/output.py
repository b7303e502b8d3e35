"""Standard output that stays usable after its reader has closed it."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

__all__ = ["SteadyStream", "steady_output"]


class SteadyStream:
    """A text stream that drops its output after an error, such as a closed pipe or a full disk."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write, unless that is no longer possible."""
        try:
            self._stream.write(text)
        except OSError:
            self._silence()
        return len(text)

    def flush(self) -> None:
        """Flush, unless that is no longer possible."""
        try:
            self._stream.flush()
        except OSError:
            self._silence()

    def _silence(self) -> None:
        # The interpreter flushes the stream when it exits, and would print an error.
        with suppress(OSError), open(os.devnull, "wb") as nothing:
            os.dup2(nothing.fileno(), self._stream.fileno())

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def steady_output() -> Iterator[None]:
    """Continue when standard output is closed: `gradproj run … | head` finishes its runs."""
    for stream in (sys.stdout, sys.stderr):
        # A terminal without ± or ḡ shows a question mark. Other kinds of streams, as tests use
        # them, may not have an encoding.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    stream = sys.stdout
    if stream is not None:  # None if the shell closed it at the start.
        sys.stdout = SteadyStream(stream)
    try:
        yield
    finally:
        if sys.stdout is not None:
            sys.stdout.flush()
        sys.stdout = stream
