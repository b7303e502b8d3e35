"""The folder of a run, whose files stay usable if the process is killed at any moment."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from gradproj.experiments.common.errors import ConfigError, RunError
from gradproj.experiments.common.files import (
    DamagedError,
    FileError,
    file_digest,
    make_folder,
    read_signed,
    read_table,
    sign,
    sync_folder,
    using,
    write_atomically,
)
from gradproj.experiments.methods.config import RunConfig
from gradproj.experiments.runs.checkpoint import Checkpoints
from gradproj.experiments.runs.resolve import differences

__all__ = ["RESULT_VERSION", "RunError", "RunFolder"]

# 2: the file carries a checksum.
RESULT_VERSION = 2


class RunFolder:
    """One run on disk: config.json, environment.json, steps.jsonl, checkpoints, result.json.

    Each file carries a checksum, or another file holds it. The files are synced in this order: the
    log before the checkpoint that holds its length, the whole log before the result, and the
    result before the checkpoints are removed.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = path / "config.json"
        self.environment = path / "environment.json"
        self.steps = path / "steps.jsonl"
        self.checkpoints = Checkpoints(path)
        self.result = path / "result.json"

    def has_work(self, config: RunConfig, *, resume: bool = False, force: bool = False) -> bool:
        """Return whether the run of `config` is still to be done; change nothing.

        A finished run of the same configuration is left alone. An unfinished one, or one whose
        result is damaged, is continued with `resume` and refused otherwise; `force` starts either
        of them over.
        """
        if force or not self.config.exists():
            return True
        self._check_same(config)
        if self.result.exists():
            try:
                self.read_result()
            except FileError as error:
                raise RunError(f"{error}; fix that, or start the run over with --force") from error
            except ValueError as error:
                if resume:
                    return True
                raise RunError(
                    f"{self.path}: {error}; --resume or --force runs it again"
                ) from error
            return False
        if self.checkpoints.exist() and not resume:
            raise RunError(
                f"{self.path} holds an unfinished run; --resume continues it, "
                "--force starts it over"
            )
        return True

    @contextmanager
    def prepared(
        self, config: RunConfig, *, resume: bool = False, force: bool = False
    ) -> Iterator[bool]:
        """Lock the folder and write `config` to it; `force` first removes the files of another run.

        Yields `has_work` again, because another process may have done the run in the meantime.
        """
        try:
            make_folder(self.path)
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
        except FileError as error:
            # Existing files stay as they are: nothing is replaced before the new file is whole.
            raise RunError(
                f"{error}; free some space or fix that, then continue with --resume"
            ) from error
        finally:
            lock.release()

    def _begin(self, config: RunConfig, force: bool) -> None:
        try:
            self._remove_temporary()
            # A result that exists here is damaged, or has lost its configuration.
            self.result.unlink(missing_ok=True)
            if force:
                self.checkpoints.remove()
                for file in (self.steps, self.config):
                    file.unlink(missing_ok=True)
                shutil.rmtree(self.path / "tensorboard", ignore_errors=True)
            # They must be removed on the disk before another configuration is written.
            sync_folder(self.path)
            if not self.config.exists():
                write_atomically(self.config, config.to_json().encode())
        except FileError:
            raise
        except OSError as error:
            raise self._unwritable(error) from error

    def _remove_temporary(self) -> None:
        """Remove temporary files of a process that was killed while it wrote them."""
        for file in (self.config, self.environment, self.checkpoints.current, self.result):
            for unfinished in self.path.glob(f".{file.name}.*"):
                unfinished.unlink(missing_ok=True)

    def remove_leftovers(self) -> None:
        """Remove the checkpoints of a finished run whose process was killed before it did."""
        if not self.checkpoints.exist():
            return
        # The folder may be read-only, or another process may be starting the run over.
        with suppress(OSError), FileLock(self.path / ".lock", timeout=0):
            if self.result.exists():
                self._remove_temporary()
                self.checkpoints.remove()

    def _unwritable(self, error: OSError) -> RunError:
        return RunError(
            f"{self.path} cannot be written ({error.strerror}); choose another folder with --out"
        )

    def _check_same(self, config: RunConfig) -> None:
        try:
            with using(self.config, "read"):
                values = read_table(self.config)
            keys = differences(config, values)
        except FileError as error:
            raise RunError(f"{error}; fix that, or start the run over with --force") from error
        except ConfigError as error:
            raise RunError(f"{self.config}: {error}") from error
        except (ValueError, AttributeError) as error:  # not text, not JSON, or not a table
            raise _damaged(self.config, error) from error
        if keys:
            raise RunError(
                f"{self.path} holds a run with another configuration (differs in "
                f"{', '.join(keys)}); choose another folder with --out, or --force to replace it"
            )

    def load_checkpoint(self) -> tuple[dict[str, Any] | None, list[str]]:
        """Read the newest checkpoint that is intact with its log, and why newer ones are not."""
        return self.checkpoints.load(self._obstacle)

    def _obstacle(self, state: Mapping[str, Any]) -> str:
        log = state.get("log", {})
        with using(self.steps, "read"):
            found = file_digest(self.steps, log.get("bytes", 0))
        if found == log.get("sha256"):
            return ""
        return f"{self.steps.name} is damaged or lacks lines that were written before it"

    def describe(self, environment: Mapping[str, Any]) -> None:
        """Write the machine and the versions of the run to environment.json."""
        write_atomically(self.environment, (json.dumps(environment, indent=2) + "\n").encode())

    def finish(self, config: RunConfig, result: Mapping[str, Any]) -> None:
        """Write the result with the checksums of the other files, then drop the checkpoints."""
        # Write the configuration again: the file may have been damaged since the run began.
        write_atomically(self.config, config.to_json().encode())
        beside = {}
        for path in self._beside():
            with using(path, "read"):
                beside[path.name] = file_digest(path)
        signed = sign({"version": RESULT_VERSION, **result, "files": beside})
        write_atomically(self.result, signed)
        # The run is finished even if they stay; the next `run` in this folder removes them.
        with suppress(OSError):
            self.checkpoints.remove()

    def read_result(self) -> dict[str, Any]:
        """Read the result; raise ValueError or FileError with the reason if it cannot be used."""
        with using(self.result, "read"):
            result = read_signed(self.result, since=RESULT_VERSION)
        if "accuracy_matrix" not in result:
            raise DamagedError("result.json is damaged: it has no accuracy_matrix")
        # Early versions did not count the stored samples.
        return {"stored_per_task": None, **result}

    def check_files(self, result: Mapping[str, Any], *, logs: bool = True) -> None:
        """Raise DamagedError for a file beside the result that is not as the run left it.

        `logs=False` skips steps.jsonl, whose check takes most of the time.
        """
        known = result.get("files", {})  # Older versions have none.
        for path in self._beside():
            checked = path.name in known and (logs or path != self.steps)
            if checked and file_digest(path) != known[path.name]:
                raise DamagedError(f"{path.name} is damaged: its checksum is not in result.json")

    def _beside(self) -> tuple[Path, ...]:
        return self.config, self.environment, self.steps


def _damaged(path: Path, error: Exception) -> RunError:
    return RunError(
        f"{path} cannot be read and is perhaps damaged ({type(error).__name__}); --force starts "
        "the run over"
    )
