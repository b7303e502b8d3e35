"""The log of a run: one line of JSON per step. Checkpoints hold its length and checksum."""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
from pathlib import Path
from typing import IO, Any

from gradproj.experiments.common.files import using

__all__ = ["StepLog"]

CHUNK = 1 << 20


class StepLog:
    """A buffered log with one line per step; `offset` is the length that the checkpoint knows."""

    def __init__(self, path: Path, offset: int = 0) -> None:
        self._path = path
        with using(path, "written"):
            if path.exists() and not path.is_file():  # such as a pipe, which would block
                raise OSError(errno.EINVAL, "it is not a regular file")
            self._file: IO[bytes] = path.open("r+b" if path.exists() else "w+b")
        self._digest = hashlib.sha256()
        while chunk := self._file.read(min(offset - self._file.tell(), CHUNK)):
            self._digest.update(chunk)
        self._file.truncate(offset)
        self._rows: list[dict[str, Any]] = []

    def add(self, row: dict[str, Any]) -> None:
        """Keep a row; a tensor under "loss" is read only when the buffer is written."""
        self._rows.append(row)
        if len(self._rows) >= 1000:
            with using(self._path, "written"):
                self._write()

    def sync(self) -> dict[str, Any]:
        """Write the buffer to the disk and return the length and the checksum of the file.

        A checkpoint that holds them is written afterwards, so that a power cut never leaves a
        checkpoint without its part of the log.
        """
        with using(self._path, "written"):
            self._write()
            self._file.flush()
            os.fsync(self._file.fileno())
        return {"bytes": self._file.tell(), "sha256": self._digest.hexdigest()}

    def close(self) -> None:
        """Write the rest and close the file."""
        with using(self._path, "written"), self._file:
            self._write()

    def _write(self) -> None:
        for row in self._rows:
            loss = float(row["loss"])
            # JSON cannot express the loss of a network that diverged.
            row["loss"] = loss if math.isfinite(loss) else None
            line = json.dumps(row, separators=(",", ":")).encode() + b"\n"
            self._file.write(line)
            self._digest.update(line)
        self._rows.clear()
