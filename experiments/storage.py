"""The folder of a run: what is in it, written so that a kill leaves nothing broken."""

from __future__ import annotations

import hashlib
import io
import json
import math
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import torch
from filelock import FileLock, Timeout

from gradproj.experiments.config import RunConfig
from gradproj.experiments.schema import ConfigError

__all__ = ["RunError", "RunFolder", "StepLog", "fitting", "from_bytes",
           "to_bytes", "write_atomically"]  # fmt: skip


class RunError(ValueError):
    """A run that cannot start or go on; the message says what to do."""


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file that is either wholly there or not at all, after a crash too."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            os.chmod(name, 0o644)  # Temporary files are private; these are to be read.
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def to_bytes(value: Any) -> bytes:
    """Write what a checkpoint holds."""
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


def from_bytes(content: bytes) -> Any:
    """Read what a checkpoint holds; nothing in it is executed."""
    return torch.load(io.BytesIO(content), weights_only=True, map_location="cpu")


def fitting(name: str) -> str:
    """Cut the name of a folder that no file system takes; a digest tells it from others.

    Examples
    --------
    >>> fitting("ours,lr=0.03"), len(fitting("ours," + 99 * "lr=0.03,"))
    ('ours,lr=0.03', 193)
    """
    if len(name.encode()) <= 200:
        return name
    start = name.encode()[:180].decode(errors="ignore")
    return f"{start}~{hashlib.sha256(name.encode()).hexdigest()[:12]}"


class RunFolder:
    """One run on disk: config.json, environment.json, steps.jsonl, checkpoint.pt, result.json."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = path / "config.json"
        self.environment = path / "environment.json"
        self.steps = path / "steps.jsonl"
        self.checkpoint = path / "checkpoint.pt"
        self.result = path / "result.json"

    def has_work(self, config: RunConfig, *, resume: bool = False, force: bool = False) -> bool:
        """Tell whether there is something left to run of `config`; nothing is changed yet.

        A finished run of the same configuration is left alone. An unfinished one is continued
        with `resume` and refused otherwise; `force` starts either of them over.
        """
        if force or not self.config.exists():
            return True
        self._check_same(config)
        if self.result.exists():
            return False
        if self.checkpoint.exists() and not resume:
            raise RunError(
                f"{self.path} holds an unfinished run; --resume continues it, "
                "--force starts it over"
            )
        return True

    @contextmanager
    def prepared(
        self, config: RunConfig, *, resume: bool = False, force: bool = False
    ) -> Iterator[bool]:
        """Have the folder to oneself, with `config` in it; `force` clears what another run left.

        Tells once more whether there is work: another process may have done it in the meantime.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            lock = FileLock(self.path / ".lock", timeout=0)
            lock.acquire()
        except Timeout:
            raise RunError(
                f"another process is running in {self.path}; wait for it, or choose another folder "
                "with --out"
            ) from None
        except OSError as error:
            raise self._unwritable(error) from error
        try:
            work = self.has_work(config, resume=resume, force=force)
            if work:
                self._begin(config, force)
            yield work
        finally:
            lock.release()

    def _begin(self, config: RunConfig, force: bool) -> None:
        try:
            # What a process was writing when it was killed.
            for file in (self.config, self.environment, self.checkpoint, self.result):
                for unfinished in self.path.glob(f".{file.name}.*"):
                    unfinished.unlink(missing_ok=True)
            if force:
                for file in (self.result, self.checkpoint, self.steps, self.config):
                    file.unlink(missing_ok=True)
                shutil.rmtree(self.path / "tensorboard", ignore_errors=True)
            if not self.config.exists():
                write_atomically(self.config, config.to_json().encode())
        except OSError as error:
            raise self._unwritable(error) from error

    def _unwritable(self, error: OSError) -> RunError:
        return RunError(
            f"{self.path} cannot be written ({error.strerror}); choose another folder with --out"
        )

    def _check_same(self, config: RunConfig) -> None:
        try:
            stored = RunConfig.read(self.config)
        except ConfigError as error:
            raise RunError(f"{self.config}: {error}") from error
        except (ValueError, AttributeError) as error:  # no text, no JSON, or no table
            raise _damaged(self.config, error) from error
        if stored != config:
            mine, theirs = json.loads(config.to_json()), json.loads(stored.to_json())
            keys = sorted(k for k in mine if mine[k] != theirs[k])
            raise RunError(
                f"{self.path} holds a run with another configuration (differs in "
                f"{', '.join(keys)}); choose another folder with --out, or --force to replace it"
            )

    def save_checkpoint(self, state: Mapping[str, Any]) -> None:
        """Replace the checkpoint."""
        write_atomically(self.checkpoint, to_bytes(dict(state)))

    def load_checkpoint(self) -> dict[str, Any] | None:
        """Read the checkpoint, if there is one; nothing in it is executed."""
        if not self.checkpoint.exists():
            return None
        try:
            state: dict[str, Any] = from_bytes(self.checkpoint.read_bytes())
        except Exception as error:
            # A damaged file may raise anything, and torch's advice is to read it unsafely.
            raise _damaged(self.checkpoint, error) from error
        return state

    def write_json(self, path: Path, value: Mapping[str, Any]) -> None:
        """Write a mapping as JSON, atomically."""
        write_atomically(path, (json.dumps(value, indent=2) + "\n").encode())

    def finish(self, result: Mapping[str, Any]) -> None:
        """Write the result and drop the checkpoint, which is of no more use."""
        self.write_json(self.result, result)
        self.checkpoint.unlink(missing_ok=True)


def _damaged(path: Path, error: Exception) -> RunError:
    return RunError(
        f"{path} cannot be read and is perhaps damaged ({type(error).__name__}); --force starts "
        "the run over"
    )


class StepLog:
    """A buffered line of JSON a step; on resuming it is cut back to the checkpoint."""

    def __init__(self, path: Path, offset: int = 0) -> None:
        size = path.stat().st_size if path.exists() else 0
        if size < offset:
            raise RunError(
                f"{path} has {size} bytes; it had {offset} when the checkpoint was written: put it "
                "back, or start the run over with --force"
            )
        self._file: IO[bytes] = path.open("r+b" if path.exists() else "w+b")
        self._file.truncate(offset)
        self._file.seek(offset)
        self._rows: list[dict[str, Any]] = []

    def add(self, row: dict[str, Any]) -> None:
        """Keep a row; a tensor under "loss" is read only when the buffer is written."""
        self._rows.append(row)
        if len(self._rows) >= 1000:
            self.flush()

    def flush(self) -> int:
        """Write what is buffered and return the length of the file."""
        for row in self._rows:
            loss = float(row["loss"])
            # JSON has no word for the loss of a network that diverged.
            row["loss"] = loss if math.isfinite(loss) else None
            self._file.write(json.dumps(row, separators=(",", ":")).encode() + b"\n")
        self._rows.clear()
        self._file.flush()
        return self._file.tell()

    def close(self) -> None:
        """Write what is left and close the file."""
        self.flush()
        self._file.close()
