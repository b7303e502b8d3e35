"""Rows: the runs of one configuration over its seeds, and their measures."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradproj.experiments.reports.collect import RunRecord
from gradproj.experiments.reports.naming import Name, fingerprint, name_of
from gradproj.experiments.runs import metrics

__all__ = ["INPUT_SPACE", "MEASURES", "Row", "control_of", "group", "replay_weight"]

Matrix = NDArray[np.float64]

# Methods that project by the old tasks' inputs. Only the first one replays samples.
INPUT_SPACE = ("preserve-replay", "preserve", "gpm", "sgp", "owm")

# Of an accuracy matrix; those but ACC need every row of it.
MEASURES: dict[str, Callable[[Matrix], float]] = {
    "acc": lambda R: 100 * float(R[-1].mean()),
    "bwt": lambda R: metrics.backward_transfer(R, "tasks"),
    "forgetting": lambda R: 100 * metrics.forgetting(R),
}


@dataclass(frozen=True, eq=False)
class Row:
    """Runs that differ in their seed alone; finished ones have a matrix."""

    name: Name
    scenario: str
    finished: tuple[RunRecord, ...]
    unfinished: tuple[RunRecord, ...]

    @property
    def benchmark(self) -> tuple[str, str]:
        """Benchmark and scenario, which belong together."""
        return self.name.benchmark, self.scenario

    @property
    def config(self) -> Mapping[str, Any]:
        """The configuration, with some seed."""
        return (self.finished or self.unfinished)[0].config

    @cached_property
    def fingerprint(self) -> str:
        """One string for all that decides its numbers; made once, as each row is asked by all."""
        return fingerprint(self.config)

    @property
    def seeds(self) -> list[int]:
        """Seeds of the finished runs."""
        return [run.seed for run in self.finished]

    @property
    def command(self) -> str:
        """What makes this row again."""
        return self.name.command(self.seeds or [run.seed for run in self.unfinished])

    @property
    def minutes(self) -> float:
        """Mean time of a run, evaluation included."""
        return float(np.mean([(r.seconds + r.evaluation_seconds) / 60 for r in self.finished]))

    @property
    def stored(self) -> str:
        """Training samples kept per task, in words; "–" where no run counted them."""
        counts = [run.stored for run in self.finished if run.stored is not None]
        return f"{np.mean(counts):.4g}" if counts else "–"

    def matrices(self, averaged: bool = False) -> list[Matrix]:
        """Accuracy matrices of the finished runs, of the averaged weights if asked for."""
        found = [run.averaged if averaged else run.matrix for run in self.finished]
        return [R for R in found if R is not None]

    def values(self, measure: str, averaged: bool = False) -> list[float]:
        """Return a measure for each seed; empty if it needs what was not measured.

        A key of `MEASURES`, or one of the runner's own metrics, then in percent.
        """
        if measure not in MEASURES:
            return [100 * run.metrics[measure] for run in self.finished if measure in run.metrics]
        matrices = self.matrices(averaged)
        if measure != "acc" and any(np.isnan(R).any() for R in matrices):
            return []
        return [MEASURES[measure](R) for R in matrices]


def group(runs: Iterable[RunRecord]) -> list[Row]:
    """Put runs of equal configuration together, one for each seed, finished ones first."""
    found: dict[tuple[str, str], dict[int, RunRecord]] = {}
    for run in runs:
        seeds = found.setdefault((fingerprint(run.config), run.scenario), {})
        known = seeds.get(run.seed)
        if known is None or (run.finished and not known.finished):
            seeds[run.seed] = run
    rows = []
    for (_, scenario), by_seed in found.items():
        ordered = [by_seed[seed] for seed in sorted(by_seed)]
        rows.append(
            Row(
                name_of(_named(ordered)),
                scenario,
                tuple(run for run in ordered if run.finished),
                tuple(run for run in ordered if not run.finished),
            )
        )
    return sorted(rows, key=lambda row: (*row.benchmark, str(row.name)))


def _named(runs: Sequence[RunRecord]) -> Mapping[str, Any]:
    # Runs of one row may come from several presets: the name must not depend on which is first.
    return min((run.config for run in runs), key=lambda config: str(config.get("preset", "")))


def replay_weight(config: Mapping[str, Any]) -> float | None:
    """Return the weight γ of the old tasks' gradients; None for a method without a projection.

    Examples
    --------
    >>> replay_weight({"method": "preserve-replay", "options": {"gamma": 0.5, "strength": 3.0}})
    0.5
    """
    method, options = config["method"], config["options"]
    if method in ("ours", "gem", "agem", "sgem"):
        return float(options["strength"])
    return float(options.get("gamma", 0.0)) if method in INPUT_SPACE else None


def control_of(row: Row, rows: Iterable[Row]) -> Row | None:
    """Find the row with the same replay term and no projection, if it was run.

    Ours and GEM add γ of every old gradient, A-GEM of their mean and S-GEM of one: only the first
    two have a control in `replay`. At γ = 0 nothing is replayed, and what is left of any of them
    without its constraints is `single`, at the same rate.
    """
    method, gamma = row.config["method"], replay_weight(row.config)
    if gamma is None or (gamma and method in ("agem", "sgem")):
        return None
    form = row.config["options"].get("replay", "sum")  # GEM adds at least γ of every old gradient
    left, options = ("replay", {"strength": gamma, "replay": form}) if gamma else ("single", {})
    wanted = fingerprint({**row.config, "method": left, "options": options})
    return next((r for r in rows if r.fingerprint == wanted and r.finished), None)
