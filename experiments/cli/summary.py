"""The table that `gradproj run` ends with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich import box
from rich.table import Table

from gradproj.experiments.cli.estimate import format_duration
from gradproj.experiments.reports.tables.table import BWT, listed, spread
from gradproj.experiments.runs.folder import RunFolder
from gradproj.experiments.runs.grid import Job

__all__ = ["EXPLANATION", "summarize"]

EXPLANATION = (
    "ACC: mean test accuracy of all tasks at the end. BWT ÷ (T−1): mean change of the old tasks' "
    "accuracies since they were learned. Both in percent. Reports show BWT ÷ T as well. Stored: "
    "samples per task. Time: per run."
)


def summarize(jobs: Sequence[Job]) -> Table | None:
    """Tabulate the finished runs, one row per configuration; None if no run is finished."""
    rows: dict[str, list[tuple[int, dict[str, Any]]]] = {}
    for job in jobs:
        store = RunFolder(job.folder)
        if store.result.exists():
            result = store.read_result()
            name = job.name.rpartition("/")[0]
            rows.setdefault(name, []).append((job.config.seed, result))
    if not rows:
        return None
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    # Names are folded and numbers are not: half a number is wrong, half a name is not.
    table.add_column("run", overflow="fold")
    table.add_column("seeds", overflow="fold")
    for column in ("stored", "ACC", BWT["bwt_pairs"], "time"):
        table.add_column(column, justify="right", no_wrap=True)
    for name, runs in rows.items():
        results = [result for _, result in runs]
        stored = results[0]["stored_per_task"]
        seconds = [each["train_seconds"] + each["evaluation_seconds"] for each in results]
        table.add_row(
            name,
            listed([seed for seed, _ in runs]),
            "–" if stored is None else f"{stored:g}",
            spread(_percent(results, "acc")),
            spread(_percent(results, "bwt_pairs"), sign="+"),
            format_duration(sum(seconds) / len(seconds)),
        )
    return table


def _percent(results: Sequence[dict[str, Any]], metric: str) -> list[float]:
    # A method that learns only at the end has no BWT.
    return [
        100 * each["metrics"][metric] for each in results if each["metrics"].get(metric) is not None
    ]
