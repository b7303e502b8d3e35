"""File operations that fail: the disk is full, or an operation is refused by the system."""

import errno
import io
import os
import resource
from contextlib import contextmanager

FULL = (errno.ENOSPC, os.strerror(errno.ENOSPC))
OPERATIONS = ("open", "fsync", "replace", "unlink", "mkdir", "ftruncate")


class Faults:
    """Counts the operations on files below a folder and lets one of them, or all later ones, fail.

    Attributes
    ----------
    seen : list of (str, str)
        Name and file of each operation so far.
    """

    def __init__(self, folder, monkeypatch, number=None, *, lasting=False):
        self.folder, self.number, self.lasting = str(folder), number, lasting
        self.seen = []
        for name in OPERATIONS:
            monkeypatch.setattr(os, name, self._failing(name, getattr(os, name)))
        monkeypatch.setattr(io, "open", self._failing("open", io.open))

    def _failing(self, name, real):
        def operation(target, *args, **kwargs):
            path = self._path(target)
            if path.startswith(self.folder):
                self.seen.append((name, path))
                now = len(self.seen)
                if now == self.number or (self.lasting and self.number and now > self.number):
                    raise OSError(*FULL)
            return real(target, *args, **kwargs)

        return operation

    def _path(self, target):
        return os.readlink(f"/proc/self/fd/{target}") if isinstance(target, int) else str(target)


@contextmanager
def files_limited_to(size):
    """Let the system refuse to write beyond `size` bytes of any file, in the middle of a write."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
