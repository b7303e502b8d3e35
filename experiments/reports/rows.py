"""Rows: the runs of one configuration over its seeds, with their metrics and strengths."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradproj.experiments import methods
from gradproj.experiments.methods.projection.learner import ProjectionLearner
from gradproj.experiments.methods.projection.preserving import PreservingLearner
from gradproj.experiments.reports.collect import RunRecord
from gradproj.experiments.reports.naming import Name, fingerprint, name_of
from gradproj.experiments.runs import metrics

__all__ = ["MEASURES", "Row", "Strengths", "control_of", "controls_at_any_rate", "group"]

Matrix = NDArray[np.float64]

# Metrics of an accuracy matrix. All except ACC need every row of it. Backward transfer has two
# definitions, which differ by the factor T/(T−1); each has its own name.
MEASURES: dict[str, Callable[[Matrix], float]] = {
    "acc": lambda R: 100 * float(R[-1].mean()),
    "bwt_tasks": lambda R: metrics.backward_transfer(R, "tasks"),
    "bwt_pairs": lambda R: metrics.backward_transfer(R, "pairs"),
    "forgetting": lambda R: 100 * metrics.forgetting(R),
}


@dataclass(frozen=True)
class Strengths:
    """The two strengths of a method, as text for tables; "–" where it does not have one.

    Attributes
    ----------
    replay : str
        γ, the weight of the old tasks' gradients. "(mean)" if it multiplies their mean instead of
        their sum.
    preservation : str
        λ, the strength of the projection in input space.
    """

    replay: str
    preservation: str


@dataclass(frozen=True, eq=False)
class Row:
    """Runs that differ only in their seed; finished ones have an accuracy matrix."""

    name: Name
    scenario: str
    finished: tuple[RunRecord, ...]
    unfinished: tuple[RunRecord, ...]

    @property
    def benchmark(self) -> tuple[str, str]:
        """Name of the benchmark, and the scenario."""
        return self.name.benchmark, self.scenario

    @property
    def config(self) -> Mapping[str, Any]:
        """The configuration of one of its runs."""
        return (self.finished or self.unfinished)[0].config

    @cached_property
    def fingerprint(self) -> str:
        """Everything that determines its results except the seed, as one string; cached."""
        return fingerprint(self.config)

    @property
    def seeds(self) -> list[int]:
        """Seeds of the finished runs."""
        return [run.seed for run in self.finished]

    @property
    def command(self) -> str:
        """The command that repeats the runs of this row."""
        return self.name.command(self.seeds or [run.seed for run in self.unfinished])

    @property
    def minutes(self) -> float:
        """Mean duration of a run, including evaluation."""
        return float(np.mean([(r.seconds + r.evaluation_seconds) / 60 for r in self.finished]))

    @property
    def stored(self) -> str:
        """Training samples stored per task, as text; "–" where no run counted them."""
        counts = [run.stored for run in self.finished if run.stored is not None]
        return f"{np.mean(counts):.4g}" if counts else "–"

    @property
    def strengths(self) -> Strengths:
        """The strengths γ and λ of the method."""
        # Only built-in methods: a report must not import the code that a run names.
        learner = methods.available().get(self.config["method"])
        options = self.config["options"]
        if learner is None or not issubclass(learner, ProjectionLearner | PreservingLearner):
            return Strengths("–", "–")
        preserving = issubclass(learner, PreservingLearner)
        replay = options.get("gamma" if preserving else "strength")
        preservation = options.get("strength") if preserving else None
        form = " (mean)" if replay and options.get("replay") == "mean" else ""
        return Strengths(_number(replay) + form, _number(preservation))

    def matrices(self, averaged: bool = False) -> list[Matrix]:
        """Return the accuracy matrices of the finished runs, or those of their averaged weights."""
        found = [run.averaged if averaged else run.matrix for run in self.finished]
        return [R for R in found if R is not None]

    def values(self, measure: str, averaged: bool = False) -> list[float]:
        """Return one value per seed; empty if the runs did not measure what it needs.

        Parameters
        ----------
        measure : str
            A key of `MEASURES`, or one of the runner's own metrics, which is returned in percent.
        averaged : bool
            Evaluate the averaged weights.
        """
        if measure not in MEASURES:
            return [100 * run.metrics[measure] for run in self.finished if measure in run.metrics]
        matrices = self.matrices(averaged)
        if measure != "acc" and any(np.isnan(R).any() for R in matrices):
            return []
        return [MEASURES[measure](R) for R in matrices]


def group(runs: Iterable[RunRecord]) -> list[Row]:
    """Group runs of equal configuration; of two runs with one seed, prefer the finished one."""
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
    # Runs of one row may come from several presets: the name must not depend on their order.
    return min((run.config for run in runs), key=lambda config: str(config.get("preset", "")))


def _control(config: Mapping[str, Any]) -> tuple[str, dict[str, Any]] | None:
    # Only built-in methods: a report must not import the code that a run names.
    learner = methods.available().get(config["method"])
    return None if learner is None else learner.control(config["options"])


def _number(value: object) -> str:
    return f"{value:g}" if isinstance(value, int | float) else "–"


def control_of(row: Row, rows: Iterable[Row]) -> Row | None:
    """Find the finished row of the method's control, with all other values equal."""
    wanted = _control_config(row)
    if wanted is None:
        return None
    key = fingerprint(wanted)
    return next((r for r in rows if r.fingerprint == key and r.finished), None)


def controls_at_any_rate(row: Row, rows: Iterable[Row]) -> list[Row]:
    """Find the finished rows of the method's control that differ at most in the learning rate."""
    wanted = _control_config(row)
    if wanted is None:
        return []
    return [
        r
        for r in rows
        if r.finished
        and r.config["method"] == wanted["method"]
        and r.fingerprint == fingerprint({**wanted, "lr": r.config["lr"]})
    ]


def _control_config(row: Row) -> Mapping[str, Any] | None:
    control = _control(row.config)
    if control is None:
        return None
    method, options = control
    return {**row.config, "method": method, "options": options}
