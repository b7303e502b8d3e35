"""Rows: the runs of one configuration over its seeds, and their measures."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradproj.experiments import methods
from gradproj.experiments.reports.collect import RunRecord
from gradproj.experiments.reports.naming import Name, fingerprint, name_of
from gradproj.experiments.runs import metrics

__all__ = ["MEASURES", "Row", "control_of", "group", "replay_weight"]

Matrix = NDArray[np.float64]

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


def _control(config: Mapping[str, Any]) -> tuple[str, dict[str, Any]] | None:
    # Only built-in methods: a report must not import the code that a run names.
    learner = methods.available().get(config["method"])
    return None if learner is None else learner.control(config["options"])


def replay_weight(config: Mapping[str, Any]) -> float | None:
    """Return the weight γ of the old tasks' gradients in the control; None if there is none.

    Examples
    --------
    >>> replay_weight({"method": "preserve-replay", "options": {"gamma": 0.5, "strength": 3.0}})
    0.5
    """
    control = _control(config)
    return None if control is None else float(control[1].get("strength", 0.0))


def control_of(row: Row, rows: Iterable[Row]) -> Row | None:
    """Find the finished row of the method's control, with all else equal."""
    control = _control(row.config)
    if control is None:
        return None
    method, options = control
    wanted = fingerprint({**row.config, "method": method, "options": options})
    return next((r for r in rows if r.fingerprint == wanted and r.finished), None)
