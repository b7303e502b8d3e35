"""The last two checkpoints of a run, each with a checksum that is verified before it is read."""

from __future__ import annotations

import errno
import io
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from gradproj.experiments.common.errors import RunError
from gradproj.experiments.common.files import (
    DamagedError,
    read_regular,
    seal,
    unseal,
    using,
    write_atomically,
)

__all__ = ["Checkpoints", "check_readable"]

KIND = b"gradproj checkpoint 2"
# The first bytes of files of torch.save, which checkpoints of version 1 were.
OLD_KIND = b"PK"

State = dict[str, Any]


class Checkpoints:
    """The newest checkpoint of a run and the one before, which is used if the newest is damaged."""

    def __init__(self, folder: Path) -> None:
        self.current = folder / "checkpoint.pt"
        self.previous = folder / "checkpoint.previous.pt"

    def exist(self) -> bool:
        """Return whether there is a checkpoint, damaged or not."""
        return self.current.exists() or self.previous.exists()

    def save(self, state: Mapping[str, Any]) -> None:
        """Write a checkpoint. The newest one until now becomes the previous one."""
        content = _to_bytes(dict(state))
        header = seal(KIND, content)
        write_atomically(self.current, header, content, keep=self.previous)

    def load(self, obstacle: Callable[[State], str]) -> tuple[State | None, list[str]]:
        """Read the newest intact checkpoint, without executing anything in it.

        Parameters
        ----------
        obstacle : callable
            Returns why an intact checkpoint does not fit the other files, or "" if it does.

        Returns
        -------
        state : dict or None
            None if no checkpoint exists: the run then begins at its first step.
        problems : list of str
            One reason for each newer checkpoint that is not used.
        """
        problems: list[str] = []
        for path in (self.current, self.previous):
            if not path.exists():
                continue
            try:
                state = _read(path)
                reason = obstacle(state)
            except DamagedError as error:
                reason = str(error)
            if not reason:
                if problems:
                    # The next save must not replace the only intact checkpoint. It also syncs this
                    # change; after a power cut before it, the same checkpoint is found again.
                    os.replace(self.previous, self.current)
                return state, problems
            problems.append(f"{path.name} is not used: {reason}")
        return None, problems

    def remove(self) -> None:
        """Delete both checkpoints."""
        self.current.unlink(missing_ok=True)
        self.previous.unlink(missing_ok=True)


def check_readable(values: Mapping[str, Any], method: str) -> None:
    """Raise RunError for values that can be written to a checkpoint but not read back."""
    for name, value in values.items():
        try:
            _from_bytes(_to_bytes(value))
        except Exception as error:
            # Pickle's own errors do not name the attribute.
            raise RunError(
                f"saved: {name!r} of method '{method}', a {type(value).__name__}, "
                f"cannot be read back from a checkpoint ({type(error).__name__}); use tensors "
                "and plain values, or lists and dicts of them"
            ) from error


def _read(path: Path) -> State:
    with using(path, "read"):
        try:
            content = read_regular(path)
        except ValueError as error:
            raise DamagedError(str(error)) from error
        except OSError as error:
            # A bad sector is damage. Other errors, such as missing rights, can be fixed.
            if error.errno != errno.EIO:
                raise
            raise DamagedError(f"it cannot be read ({error.strerror})") from error
    if content.startswith(OLD_KIND):
        raise RunError(
            f"{path} was written by an older gradproj, without a checksum; finish the run with "
            "that version, or start it over with --force"
        )
    content = unseal(KIND, content)
    try:
        state = _from_bytes(content)
    except Exception as error:
        # The checksum is right, so the file was written like this on purpose. torch's message
        # advises to read it unsafely, so it is not shown.
        raise RunError(
            f"{path} cannot be read ({type(error).__name__}); --force starts the run over"
        ) from error
    if not isinstance(state, dict):
        raise RunError(
            f"{path} is not a checkpoint of a run (a {type(state).__name__}); --force starts the "
            "run over"
        )
    return state


def _to_bytes(value: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


def _from_bytes(content: bytes) -> Any:
    return torch.load(io.BytesIO(content), weights_only=True, map_location="cpu")
