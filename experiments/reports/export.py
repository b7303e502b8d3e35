"""Exported results: one JSON file per run, and the README and findings made from them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from gradproj.experiments.common.files import component, write_atomically
from gradproj.experiments.reports.collect import TUNING, RunRecord, collect
from gradproj.experiments.reports.content import build
from gradproj.experiments.reports.findings import SOURCE, fill
from gradproj.experiments.reports.naming import fingerprint, name_of
from gradproj.experiments.reports.notes import FILE, read_notes
from gradproj.experiments.reports.render.markdown import render
from gradproj.experiments.reports.rows import group
from gradproj.experiments.reports.tables.table import STATUS

__all__ = ["export", "findings", "readme", "to_json", "write_pages"]

GENERATED = f"<!-- Written by `gradproj report --results` from {SOURCE}; edit that file. -->"
INTRODUCTION = (
    "`gradproj report --results results` writes this file from the runs in this folder; do not "
    "edit it. Each run is one file with its configuration, accuracy matrix, duration and versions. "
    "`notes.toml` explains differences from the paper. [findings.md](findings.md) says what the "
    "results mean, [figures](figures/README.md) has sweeps and measurements, and `gradproj report "
    "results --out report` makes a page with figures."
)
ABOUT_TUNING = (
    "`gradproj report --results results/tuning` writes this file from the runs in this folder; do "
    "not edit it. No reported row counts these runs. They served to choose values, with seeds "
    "other than those reported, and to measure how far rounding alone moves a result: a learning "
    "rate that differs in its eighth digit rounds every step differently and changes nothing else."
)


def export(runs: Iterable[RunRecord], folder: Path) -> list[Path]:
    """Write the finished runs to `folder`, as benchmark/entry/seed-N.json.

    Raises
    ------
    ValueError
        If two runs of different configurations have one name; nothing is written then.
    """
    kept: dict[Path, RunRecord] = {}
    for run in runs:
        if run.finished:
            path = folder / _place(run)
            other = kept.setdefault(path, run)
            if fingerprint(other.config) != fingerprint(run.config):
                raise ValueError(
                    f"{other.source} and {run.source} differ and would both be kept as {path}; "
                    "leave one of them out"
                )
            kept[path] = run
    for path, run in kept.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, to_json(run).encode())
    return list(kept)


def _place(run: RunRecord) -> Path:
    # Some file systems do not allow colons, and git may copy this folder to one of them.
    series, _, entry = str(name_of(run.config)).replace(":", "-").partition("/")
    return Path(component(series), component(entry), f"seed-{run.seed}.json")


def to_json(run: RunRecord) -> str:
    """Write a run as JSON, with one line per row of a matrix, so that diffs are readable."""
    content: dict[str, Any] = {
        "version": 1,
        "scenario": run.scenario,
        "config": run.config,
        "environment": run.environment,
        "train_seconds": run.seconds,
        "evaluation_seconds": run.evaluation_seconds,
        "stored_per_task": run.stored,
        "metrics": run.metrics,
    }
    parts = [f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in content.items()]
    for key, matrix in (
        ("accuracy_matrix", run.matrix),
        ("averaged_accuracy_matrix", run.averaged),
    ):
        if matrix is not None:
            rows = [[None if v != v else v for v in row] for row in matrix.tolist()]
            lines = ",\n".join(f"    {json.dumps(row)}" for row in rows)
            parts.append(f'  "{key}": [\n{lines}\n  ]')
    if run.at_chance:
        parts.append(f'  "at_chance": {json.dumps(run.at_chance)}')
    if run.corrected:
        parts.append(f'  "corrected": {json.dumps(run.corrected)}')
    return "{\n" + ",\n".join(parts) + "\n}\n"


def readme(folder: Path) -> str:
    """Make the README of a folder of exported runs.

    Raises
    ------
    ValueError
        If one of the files cannot be read.
    """
    collection = collect([folder])
    if collection.problems:
        raise ValueError(f"--results: {collection.problems[0]}; repair or remove that file")
    tuning = folder.name == TUNING
    report = build(collection, read_notes(folder / FILE), beside_paper=not tuning)
    if tuning:
        return render(report, "Runs for choosing values", ABOUT_TUNING)
    return render(report, "Results", INTRODUCTION)


def findings(folder: Path) -> str | None:
    """Fill in the findings of a folder of exported runs; None if it has no text for them."""
    source = folder / SOURCE
    if not source.exists():
        return None
    collection = collect([folder])
    report = build(collection, {})
    cells = {status: report.count(status) for status in STATUS}
    text = fill(source.read_text(encoding="utf-8"), group(collection.runs), cells)
    return f"{GENERATED}\n\n{text}"


def write_pages(folder: Path) -> list[Path]:
    """Write the README of a folder of exported runs, and its findings if it has a text for them."""
    pages = {"README.md": readme(folder), "findings.md": findings(folder)}
    written = []
    for name, text in pages.items():
        if text is not None:
            write_atomically(folder / name, text.encode())
            written.append(folder / name)
    return written
