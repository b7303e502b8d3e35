"""What a projection adds to the replay term that it contains: the honest control."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from gradproj.experiments.report import paper
from gradproj.experiments.report.rows import Row, control_of
from gradproj.experiments.report.tables import Line, Table, listed, printed, spread

__all__ = ["control_table", "difference_to_control", "overview_table"]


def control_table(rows: Sequence[Row]) -> Table | None:
    """Show what each projection adds to its replay term alone, seed by seed."""
    shown = [(row, line) for row in rows if (line := _line(row, rows)) is not None]
    columns = ("method", "strength γ", "ACC", "control's ACC", "difference", "seeds")
    about = (
        "The control is the replay term alone, w = g + γ Σ gᵢ, with no constraint, at the same "
        "strength and with the same memory; differences are taken seed by seed. Ours adds the same "
        "term at every step, GEM at least as much wherever a constraint is violated. At γ = 0 "
        "nothing is replayed: the control is then Single at the same rate."
    )
    lines = [
        Line((row.name.label, f"{row.config['options']['strength']:g}", *cells), row=row)
        for row, cells in shown
    ]
    return _table("What the projection adds", columns, lines, about, rows)


def overview_table(rows: Sequence[Row]) -> Table | None:
    """Show on one page what ours and GEM add, on every benchmark, with their own presets."""
    columns = ("benchmark", "method", "paper ACC", "ACC", "control's ACC", "difference", "seeds")
    about = (
        "Ours and GEM with the values of their presets, beside the control: the replay term "
        "w = g + γ Σ gᵢ alone, with no constraint; for the equations as printed, which replay "
        "nothing, Single at the same rate. Differences are taken seed by seed; the variants are in "
        "the sections below."
    )
    lines = []
    for row in rows:
        entry = row.name.entry.removesuffix("-3ep").removesuffix("-printed")
        own = entry == row.config["method"] in ("ours", "gem") and not row.name.changes
        cells = _line(row, rows) if own else None
        if cells is not None:
            method = paper.label(row.name.entry)
            lines.append(Line((row.name.series, method, _published(row), *cells), row=row))
    return _table("What the projection adds, at a glance", columns, lines, about, rows)


def _line(row: Row, rows: Sequence[Row]) -> tuple[str, ...] | None:
    own, other = _beside_control(row, rows)
    if not own:
        return None
    return (
        spread(list(own.values())),
        spread([other[seed] for seed in own]),
        spread(difference_to_control(row, rows), digits=2, sign="+"),
        listed(list(own)),
    )


def _table(
    title: str, columns: tuple[str, ...], lines: Sequence[Line], about: str, rows: Sequence[Row]
) -> Table | None:
    if not lines:
        return None
    gained = [tuple(difference_to_control(line.row, rows)) for line in lines if line.row]
    noted = [replace(line, note=_parted(line.row, rows)) for line in lines if line.row]
    return Table(title, columns, tuple(noted), about, differences=tuple(gained))


def _parted(row: Row, rows: Sequence[Row]) -> str:
    """Say so if runs of equal seeds differ before there is an old task, and so pair nothing."""
    control = control_of(row, rows)
    first = {run.seed: run.matrix[0] for run in row.finished if run.matrix is not None}
    others = control.finished if control is not None else ()
    parted = [
        run.seed
        for run in others
        if run.seed in first
        and run.matrix is not None
        and not np.array_equal(first[run.seed], run.matrix[0], equal_nan=True)
    ]
    if not parted:
        return ""
    return (
        f"Equal seeds ({listed(parted)}) and their control differ in the first task, where both "
        "are plain SGD: they come from other machines or versions, and the difference is of means, "
        "not of pairs."
    )


def _published(row: Row) -> str:
    """Return the paper's number for a row, from the first of its tables that has it."""
    for table in paper.tables():
        cell = table.cells.get(row.name.series, {}).get(row.name.entry)
        if cell is not None and table.metric == "acc":
            return printed(cell)
    return "–"


def difference_to_control(row: Row, rows: Sequence[Row], *, averaged: bool = False) -> list[float]:
    """Return ACC minus that of the replay term alone, for each seed that both were run with."""
    own, other = _beside_control(row, rows, averaged)
    return [own[seed] - other[seed] for seed in own]


def _beside_control(
    row: Row, rows: Sequence[Row], averaged: bool = False
) -> tuple[dict[int, float], dict[int, float]]:
    control = control_of(row, rows)
    if control is None:
        return {}, {}
    own = dict(zip(row.seeds, row.values("acc", averaged), strict=True))
    other = dict(zip(control.seeds, control.values("acc", averaged), strict=True))
    return {seed: acc for seed, acc in own.items() if seed in other}, other
