"""The runs of a report: run folders, finished or not, and exported files."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradproj.experiments.common.files import read_regular, read_table
from gradproj.experiments.reports.naming import fingerprint, name_of
from gradproj.experiments.runs.folder import RunFolder
from gradproj.experiments.streams.benchmarks import BENCHMARKS, is_own_benchmark

__all__ = ["BINS", "TUNING", "Collection", "RunRecord", "collect"]

Matrix = NDArray[np.float64]

# Number of pieces over which the log of a run is averaged. Exported files keep only these means.
BINS = 100
# Runs in a folder of this name were made to choose values. They have a report of their own, because
# a value must not be judged by the runs that it was chosen on.
TUNING = "tuning"


@dataclass(frozen=True, eq=False)
class RunRecord:
    """One run.

    Attributes
    ----------
    config : mapping
        As in its `config.json`.
    scenario : str
        "task", "class" or "domain"; "unknown" for unfinished runs of a user's own benchmark.
    source : Path
        Its folder or file.
    matrix : array or None
        The accuracy matrix, NaN where it was not measured; None for an unfinished run.
    averaged : array or None
        The same for the averaged weights.
    metrics : mapping
        As the runner computed them, as fractions.
    seconds, evaluation_seconds : float
    environment : mapping
        Versions and machine.
    stored : float or None
        Training samples kept per task; None for runs of versions that did not count them.
    corrected : tuple
        Share of layers that were corrected, one value per piece of the run. Empty for methods
        without a projection; None for pieces without one.
    at_chance : tuple of int
        Indices of tasks that were trained without learning anything, as the runner noted them.
    progress : str
        Task and step that an unfinished run has reached.
    """

    config: Mapping[str, Any]
    scenario: str
    source: Path
    matrix: Matrix | None = None
    averaged: Matrix | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    seconds: float = 0.0
    evaluation_seconds: float = 0.0
    environment: Mapping[str, Any] = field(default_factory=dict)
    stored: float | None = None
    corrected: tuple[float | None, ...] = ()
    at_chance: tuple[int, ...] = ()
    progress: str = ""

    @property
    def finished(self) -> bool:
        """Whether there is a result."""
        return self.matrix is not None

    @property
    def seed(self) -> int:
        """The seed of the run."""
        return int(self.config["seed"])


@dataclass(frozen=True)
class Collection:
    """All runs that were found, and the files that could not be read, with the reason."""

    runs: tuple[RunRecord, ...]
    problems: tuple[str, ...]


def collect(paths: Iterable[Path], *, logs: bool = True) -> Collection:
    """Read all runs at or under `paths`.

    Parameters
    ----------
    paths : iterable of Path
        Run folders, exported files, or folders of either; a folder "tuning" inside them is left
        out unless it is named itself.
    logs : bool
        Whether to read the logs of finished runs, which takes most of the time.

    Raises
    ------
    ValueError
        If one of the paths does not exist. Files that cannot be read are listed in `problems`,
        so that the report of the other runs can still be made.
    """
    runs: list[RunRecord] = []
    problems: list[str] = []
    seen: set[Path] = set()
    for path in paths:
        if not path.exists():
            raise ValueError(
                f"RUNS: {path} does not exist; give run folders, folders of them, or exported files"
            )
        for source in _sources(path):
            if source.resolve() in seen:
                continue
            seen.add(source.resolve())
            try:
                run = _read_folder(source, logs) if source.is_dir() else _read_file(source)
                _check(run)
                runs.append(run)
            except Exception as error:  # The files may come from anywhere.
                reason = f"key {error} is missing" if isinstance(error, KeyError) else str(error)
                problems.append(_one_line(f"{source}: {reason or type(error).__name__}"))
    return Collection(tuple(runs), tuple(problems))


def _one_line(text: str) -> str:
    """Make one line without control characters, so that it is safe to print in a terminal."""
    line = "".join(c if c.isprintable() else "\ufffd" for c in " ".join(text.split()))
    return line if len(line) <= 500 else f"{line[:500]}…"


def _sources(path: Path) -> list[Path]:
    """List run folders and exported files, in an order that does not depend on the disk."""
    if path.is_file():
        return [path.parent if path.name in ("config.json", "result.json") else path]
    found = [f for f in path.rglob("*.json") if TUNING not in f.relative_to(path).parts]
    folders = {file.parent for file in found if file.name == "config.json"}
    files = {file for file in found if file.parent not in folders}
    return sorted(folders | files)


def _read_folder(folder: Path, logs: bool) -> RunRecord:
    config = _checked(read_table(folder / "config.json"))
    environment = folder / "environment.json"
    shared: dict[str, Any] = {
        "config": config,
        "source": folder,
        "environment": read_table(environment) if environment.exists() else {},
    }
    finished = (folder / "result.json").exists()
    log = _read_log(folder / "steps.jsonl") if logs or not finished else []
    if not finished:
        done = f"in task {log[-1]['task'] + 1}, step {log[-1]['step']}" if log else "not begun"
        return RunRecord(scenario=_scenario(config), progress=done, **shared)
    result = RunFolder(folder).read_result()
    RunFolder(folder).check_files(result, logs=logs)
    return RunRecord(
        scenario=result["scenario"],
        matrix=_matrix(result["accuracy_matrix"]),
        averaged=_matrix(result.get("averaged_accuracy_matrix")),
        metrics=result["metrics"],
        seconds=float(result["train_seconds"]),
        evaluation_seconds=float(result["evaluation_seconds"]),
        stored=result["stored_per_task"],
        corrected=_in_bins(log),
        at_chance=tuple(result.get("at_chance", ())),
        **shared,
    )


def _read_file(path: Path) -> RunRecord:
    content = read_table(path)
    return RunRecord(
        config=_checked(content["config"]),
        scenario=content["scenario"],
        source=path,
        matrix=_matrix(content["accuracy_matrix"]),
        averaged=_matrix(content.get("averaged_accuracy_matrix")),
        metrics=content["metrics"],
        seconds=float(content["train_seconds"]),
        evaluation_seconds=float(content["evaluation_seconds"]),
        environment=content["environment"],
        stored=content.get("stored_per_task"),
        corrected=tuple(content.get("corrected", ())),
        at_chance=tuple(content.get("at_chance", ())),
    )


def _check(run: RunRecord) -> None:
    """Raise for values that the tables of a report could not show."""
    fingerprint(run.config)
    name_of(run.config).command([run.seed])
    if run.scenario not in ("task", "class", "domain", "unknown"):
        raise ValueError(f"scenario={run.scenario!r} is not known")
    numbers = [run.seconds, run.evaluation_seconds, *dict(run.metrics).values()]
    numbers += [share for share in (run.stored, *run.corrected) if share is not None]
    for number in numbers:
        if not isinstance(number, int | float) or abs(number) > 1e12:
            raise ValueError(f"{number!r} is not a number that a run measures")
    tasks = 0 if run.matrix is None else len(run.matrix)
    if not all(isinstance(task, int) and 0 <= task < tasks for task in run.at_chance):
        raise ValueError(f"at_chance={list(run.at_chance)} are not indices of the {tasks} tasks")
    if not isinstance(run.environment, dict):
        raise ValueError("environment is not a table of keys and values")


def _checked(config: Any) -> dict[str, Any]:
    """Check the types of the keys that runs are named by, and return the configuration."""
    kinds = {"benchmark": str, "method": str, "seed": int, "options": dict, "stream": dict}
    for key, kind in kinds.items():
        if not isinstance(config[key], kind):
            raise ValueError(
                f"{key}={config[key]!r} in the configuration has the type "
                f"{type(config[key]).__name__}: expected {kind.__name__}"
            )
    return dict(config)


def _matrix(rows: Sequence[Sequence[float | None]] | None) -> Matrix | None:
    if not rows:
        return None
    matrix = np.asarray(rows, dtype=np.float64)
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
        raise ValueError(f"accuracy_matrix has shape {matrix.shape}; it must be square")
    if ((matrix < 0) | (matrix > 1)).any():
        raise ValueError("accuracy_matrix holds numbers outside 0 to 1")
    return matrix


def _read_log(path: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    if path.exists():
        for line in read_regular(path).decode().splitlines():
            try:
                rows.append(json.loads(line))
            except json.JSONDecodeError:
                break  # The run was killed while it wrote its last line.
    return rows


def _in_bins(log: Sequence[Mapping[str, Any]]) -> tuple[float | None, ...]:
    if not any("corrected" in row for row in log):
        return ()
    pieces = np.array_split(np.arange(len(log)), min(BINS, len(log)))
    means: list[float | None] = []
    for piece in pieces:
        shares = [log[i]["corrected"] for i in piece if "corrected" in log[i]]
        means.append(round(float(np.mean(shares)), 4) if shares else None)
    return tuple(means)


def _scenario(config: Mapping[str, Any]) -> str:
    """Derive the scenario of an unfinished run from its configuration."""
    name = str(config["benchmark"])
    if is_own_benchmark(name):
        return str(config.get("stream", {}).get("scenario", "unknown"))
    known = BENCHMARKS.get(name)
    kind = known.kind if known else name.partition(":")[0]
    default = dict(known.options).get("scenario", "task") if known else "task"
    return str(config.get("stream", {}).get("scenario", default)) if kind == "split" else "domain"
