"""The server that workers are forked from, with the import path of this process."""

from __future__ import annotations

import atexit
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from multiprocessing import forkserver, resource_tracker
from pathlib import Path
from typing import IO

from gradproj.experiments.runs.signals import without_interrupts

__all__ = ["WorkerErrors", "import_environment", "start_server"]


class WorkerErrors:
    """Standard error of the workers, kept in a file so that live bars do not erase it."""

    def __init__(self, file: IO[bytes] | None = None) -> None:
        self.file = file
        self._read = 0

    def take(self) -> str:
        """Return the text that was written since the last call."""
        if self.file is None:
            return ""
        new = os.pread(self.file.fileno(), os.fstat(self.file.fileno()).st_size, self._read)
        self._read += len(new)
        return new.decode(errors="replace").strip()


def import_environment() -> dict[str, str]:
    """Return environment variables with which a new Python imports what this one does.

    Without them it looks in the working directory first, where a folder `gradproj` may lie.
    """
    path = [entry or str(Path.cwd()) for entry in sys.path]
    return {"PYTHONPATH": os.pathsep.join(path), "PYTHONSAFEPATH": "1"}


@cache
def _errors() -> WorkerErrors:
    file = tempfile.TemporaryFile()  # noqa: SIM115 - as long as the server runs
    atexit.register(file.close)
    return WorkerErrors(file)


def start_server() -> WorkerErrors:
    """Start the server unless it runs already; return the standard error of its workers."""
    errors = _errors()
    assert errors.file is not None
    # Starting the tracker unblocks Ctrl-C, so it must run before the server is started.
    resource_tracker.ensure_running()
    with (
        _changed_environment(import_environment()),
        _standard_error(errors.file.fileno()),
        without_interrupts(),
    ):
        forkserver.ensure_running()
    return errors


@contextmanager
def _changed_environment(changes: dict[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in changes}
    os.environ.update(changes)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextmanager
def _standard_error(descriptor: int) -> Iterator[None]:
    """Let processes that are started inside inherit `descriptor` as their standard error."""
    try:
        kept = os.dup(2)
    except OSError:  # It is closed; the errors of workers are kept all the same.
        kept = os.open(os.devnull, os.O_WRONLY)
    os.dup2(descriptor, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
