"""The arguments of a figure, and the runs that it needs, found or made."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradproj.experiments.common.schema import to_plain
from gradproj.experiments.reports.collect import collect
from gradproj.experiments.reports.naming import fingerprint
from gradproj.experiments.reports.rows import Row, group
from gradproj.experiments.reports.tables.table import Table
from gradproj.experiments.runs import presets
from gradproj.experiments.runs.events import ignore
from gradproj.experiments.runs.folder import RunError
from gradproj.experiments.runs.grid import Job, Outcome, execute_all
from gradproj.experiments.runs.jobs import make_jobs, parse_changes

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Made", "Request", "Spec", "obtain", "title"]

TIMED = "timed"


def quietly(jobs: Sequence[Job], workers: int | None) -> list[Outcome]:
    """Execute all jobs without output."""
    return execute_all(jobs, ignore, workers=workers)


@dataclass(frozen=True)
class Request:
    """The arguments of `gradproj figure`; `execute` makes the missing runs."""

    benchmark: str = "permuted-digits"
    seeds: tuple[int, ...] = (0, 1, 2)
    overrides: tuple[str, ...] = ()
    ranks: tuple[int, ...] = (1, 2, 3, 5, 8)
    memory: tuple[int, ...] = (10, 50, 256)
    strengths: tuple[float, ...] = (0.0, 0.1, 0.3, 1.0, 3.0, 10.0)
    runs: Path = Path("runs")
    data_dir: Path | None = None
    draw_only: bool = False
    workers: int | None = None
    execute: Callable[[Sequence[Job], int | None], list[Outcome]] = quietly


@dataclass(frozen=True)
class Made:
    """A figure and the table of its numbers."""

    figure: Figure
    table: Table


@dataclass(frozen=True)
class Spec:
    """One configuration that a figure needs: the entry of a preset and its changes."""

    entry: str
    changes: tuple[str, ...] = ()


def obtain(request: Request, specs: Sequence[Spec], *, alone: bool = False) -> dict[Spec, Row]:
    """Find the finished runs of each configuration under `request.runs`, and make missing ones.

    Parameters
    ----------
    request : Request
    specs : sequence of Spec
    alone : bool
        Make one run at a time, in a separate folder, so that their times can be compared.

    Returns
    -------
    dict
        Only configurations with at least one finished run of the wanted seeds.

    Raises
    ------
    RunError
        If a run fails, or none is there to draw from.
    """
    _refuse_varied(request, specs)
    if alone:
        # Runs that were made beside others took longer and must not be found.
        request = replace(request, runs=request.runs / TIMED)
    wanted = {spec: _jobs(request, spec) for spec in specs}
    found = _find(request, wanted)
    if not request.draw_only:
        missing: dict[Path, Job] = {}
        for spec, jobs in wanted.items():
            there = found[spec].seeds if spec in found else []
            missing |= {job.folder: job for job in jobs if job.config.seed not in there}
        _run(request, list(missing.values()), 1 if alone else request.workers)
        found = _find(request, wanted)
    if not found:
        raise RunError(f"no finished run to draw from in {request.runs}; leave out --draw-only")
    return found


def title(request: Request, rows: Mapping[Spec, Row]) -> str:
    """Name the benchmark with its scenario."""
    return f"{request.benchmark} ({next(iter(rows.values())).scenario}-incremental)"


def _refuse_varied(request: Request, specs: Sequence[Spec]) -> None:
    """Raise if --set changes a value that the figure sets itself."""
    varied = {pair.partition("=")[0] for spec in specs for pair in spec.changes}
    for pair in request.overrides:
        if pair.partition("=")[0].strip() in varied:
            raise ValueError(f"--set {pair}: this figure sets that value itself; leave it out")


def _jobs(request: Request, spec: Spec) -> list[Job]:
    name = f"{request.benchmark}/{spec.entry}"
    preset = presets.find(name)
    # Setting a value to that of the preset must not make a second run of it.
    changes = [
        pair
        for pair in (*request.overrides, *spec.changes)
        if presets.find(name, parse_changes([pair])) != preset
    ]
    arguments: dict[str, Any] = {"resume": True, "data_dir": request.data_dir}
    return make_jobs(
        [name], seeds=request.seeds, overrides=changes, out=request.runs, arguments=arguments
    )


def _find(request: Request, wanted: dict[Spec, list[Job]]) -> dict[Spec, Row]:
    if not request.runs.exists():
        return {}
    runs = [run for run in collect([request.runs], logs=False).runs if run.finished]
    rows = group(run for run in runs if run.seed in request.seeds)
    by_content = {row.fingerprint: row for row in rows}
    keys = {spec: fingerprint(to_plain(jobs[0].config)) for spec, jobs in wanted.items()}
    return {spec: by_content[key] for spec, key in keys.items() if key in by_content}


def _run(request: Request, jobs: Sequence[Job], workers: int | None) -> None:
    outcomes = request.execute(jobs, workers) if jobs else []
    bad = [outcome for outcome in outcomes if outcome.kind not in ("finished", "skipped")]
    if any(outcome.kind == "interrupted" for outcome in bad):
        raise KeyboardInterrupt
    if bad:
        raise RunError(f"{bad[0].name}: {bad[0].message}")
