"""A row beside its control, the same training without constraints, seed by seed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from gradproj.experiments.reports.intervals import interval
from gradproj.experiments.reports.rows import Row, control_of, controls_at_any_rate

__all__ = ["Comparison", "Verdict", "compare", "compare_at_best_rate"]

Verdict = Literal["better", "worse", "open", "one seed", "not paired"]


@dataclass(frozen=True)
class Comparison:
    """ACC of a row and of its control at the seeds that both were run with.

    Attributes
    ----------
    control : Row
    seeds : tuple of int
    own, others : tuple of float
        ACC of the row and of its control, one value per seed.
    unpaired : tuple of int
        Seeds whose runs already differ in the first task, where both methods are plain SGD. These
        runs come from different machines or versions.
    """

    control: Row
    seeds: tuple[int, ...]
    own: tuple[float, ...]
    others: tuple[float, ...]
    unpaired: tuple[int, ...]

    @property
    def differences(self) -> tuple[float, ...]:
        """ACC minus that of the control, one value per seed."""
        return tuple(a - b for a, b in zip(self.own, self.others, strict=True))

    @property
    def mean(self) -> float:
        """Mean difference."""
        return float(np.mean(self.differences))

    @property
    def interval(self) -> tuple[float, float] | None:
        """95 % interval of the mean difference; None with one seed or where seeds do not pair."""
        return None if self.unpaired else interval(self.differences)

    @property
    def verdict(self) -> Verdict:
        """The conclusion from the interval; "open" means that it contains zero."""
        if self.interval is None:
            return "not paired" if self.unpaired and len(self.seeds) > 1 else "one seed"
        low, high = self.interval
        return "better" if low > 0 else "worse" if high < 0 else "open"


def compare(row: Row, rows: Sequence[Row], *, averaged: bool = False) -> Comparison | None:
    """Compare a row with its control; None without a control that shares a seed.

    Parameters
    ----------
    row : Row
    rows : sequence of Row
        Where the control is looked for.
    averaged : bool
        Compare the averaged weights of both.
    """
    control = control_of(row, rows)
    return None if control is None else _compare(row, control, averaged)


def compare_at_best_rate(row: Row, rows: Sequence[Row]) -> Comparison | None:
    """Compare a row with the control whose learning rate gives it the highest mean ACC.

    The rate is chosen among the runs at hand and by test accuracy, which favours the control.
    """
    found = (_compare(row, control) for control in controls_at_any_rate(row, rows))
    return max(
        (comparison for comparison in found if comparison is not None),
        key=lambda comparison: float(np.mean(comparison.others)),
        default=None,
    )


def _compare(row: Row, control: Row, averaged: bool = False) -> Comparison | None:
    own, others = (
        dict(zip(r.seeds, r.values("acc", averaged), strict=True)) for r in (row, control)
    )
    seeds = tuple(seed for seed in own if seed in others)
    if not seeds:
        return None
    return Comparison(
        control,
        seeds,
        tuple(own[seed] for seed in seeds),
        tuple(others[seed] for seed in seeds),
        _unpaired(row, control, seeds),
    )


def _unpaired(row: Row, control: Row, seeds: Sequence[int]) -> tuple[int, ...]:
    if row.config["lr"] != control.config["lr"]:
        return ()  # The first task differs by intention. The seeds still share their data.
    starts, others = (
        {seed: R[0] for seed, R in zip(r.seeds, r.matrices(), strict=True)} for r in (row, control)
    )
    # Until there is an old task, both take the same steps.
    return tuple(
        seed for seed in seeds if not np.array_equal(starts[seed], others[seed], equal_nan=True)
    )
