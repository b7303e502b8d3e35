"""What a projection adds to the replay term that it contains: the honest control."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gradproj.experiments.reports import paper
from gradproj.experiments.reports.rows import Row, control_of, replay_weight
from gradproj.experiments.reports.tables.published import printed
from gradproj.experiments.reports.tables.table import Line, Table, listed, spread

__all__ = ["control_table", "difference_to_control", "overview_table"]


@dataclass(frozen=True)
class _Pairs:
    """A row and its control at the seeds that both were run with; `parted`: those of no pair."""

    seeds: list[int]
    own: list[float]
    control: list[float]
    parted: list[int]

    @property
    def gained(self) -> tuple[float, ...]:
        return tuple(a - b for a, b in zip(self.own, self.control, strict=True))

    @property
    def cells(self) -> tuple[str, ...]:
        gained = spread(self.gained, digits=2, sign="+")
        return spread(self.own), spread(self.control), gained, listed(self.seeds)

    @property
    def note(self) -> str:
        if not self.parted:
            return ""
        return (
            f"Equal seeds ({listed(self.parted)}) and their control differ in the first task, "
            "where both are plain SGD: they come from other machines or versions, and the "
            "difference is of means, not of pairs."
        )


def control_table(rows: Sequence[Row]) -> Table | None:
    """Show what each projection adds to its replay term alone, seed by seed."""
    columns = ("method", "strength γ", "ACC", "control's ACC", "difference", "seeds")
    about = (
        "The control is the replay term alone, w = g + γ Σ gᵢ, with no constraint, at the same "
        "strength and with the same memory; differences are taken seed by seed. Ours adds the same "
        "term at every step, GEM at least as much wherever a constraint is violated. At γ = 0 "
        "nothing is replayed, and Preserve, GPM, SGP and OWM store no samples: the control is then "
        "Single at the same rate."
    )
    found = [
        ((row.name.label, f"{replay_weight(row.config):g}"), row, pairs)
        for row in rows
        if (pairs := _pairs(row, rows)) is not None
    ]
    return _table("What the projection adds", columns, about, found)


def overview_table(rows: Sequence[Row]) -> Table | None:
    """Show on one page what the main projections add, on every benchmark, with their presets."""
    columns = ("benchmark", "method", "paper ACC", "ACC", "control's ACC", "difference", "seeds")
    about = (
        "Methods with the values of their presets, beside the control: the replay term "
        "w = g + γ Σ gᵢ alone, with no constraint; for methods that replay nothing, Single at the "
        "same rate. Differences are taken seed by seed; the variants are in the sections below."
    )
    found = [
        ((row.name.series, paper.label(row.name.entry), _published(row)), row, pairs)
        for row in rows
        if _is_own_preset(row) and (pairs := _pairs(row, rows)) is not None
    ]
    return _table("What the projection adds, at a glance", columns, about, found)


def difference_to_control(row: Row, rows: Sequence[Row], *, averaged: bool = False) -> list[float]:
    """Return ACC minus that of the control, for each seed that both were run with."""
    pairs = _pairs(row, rows, averaged)
    return [] if pairs is None else list(pairs.gained)


def _pairs(row: Row, rows: Sequence[Row], averaged: bool = False) -> _Pairs | None:
    control = control_of(row, rows)
    if control is None:
        return None
    own, other = (
        dict(zip(r.seeds, r.values("acc", averaged), strict=True)) for r in (row, control)
    )
    starts, others = (
        {seed: R[0] for seed, R in zip(r.seeds, r.matrices(), strict=True)} for r in (row, control)
    )
    seeds = [seed for seed in own if seed in other]
    # Before there is an old task both take the same steps.
    parted = [s for s in seeds if not np.array_equal(starts[s], others[s], equal_nan=True)]
    if not seeds:
        return None
    return _Pairs(seeds, [own[s] for s in seeds], [other[s] for s in seeds], parted)


def _is_own_preset(row: Row) -> bool:
    entry = row.name.entry.removesuffix("-3ep").removesuffix("-printed")
    return entry == row.config["method"] in paper.overview() and not row.name.changes


def _table(
    title: str,
    columns: tuple[str, ...],
    about: str,
    found: Sequence[tuple[tuple[str, ...], Row, _Pairs]],
) -> Table | None:
    if not found:
        return None
    lines = [Line((*start, *pairs.cells), "", pairs.note, row) for start, row, pairs in found]
    gained = tuple(pairs.gained for _, _, pairs in found)
    return Table(title, columns, tuple(lines), about, differences=gained)


def _published(row: Row) -> str:
    """Return the paper's number for a row, from the first of its tables that has it."""
    for table in paper.tables():
        cell = table.cells.get(row.name.series, {}).get(row.name.entry)
        if cell is not None and table.metric == "acc":
            return printed(cell)
    return "–"
