"""ACC and BWT against the number of task-specific directions, for the three relaxations."""

from __future__ import annotations

import numpy as np

from gradproj.experiments.reports.figures import style
from gradproj.experiments.reports.figures.request import Made, Request, Spec, obtain, title
from gradproj.experiments.reports.figures.series import MEASURED, draw_line
from gradproj.experiments.reports.rows import Row
from gradproj.experiments.reports.tables.table import Line, Table, spread

__all__ = ["make"]

RELAXATIONS = {"PCA": "ours", "FirstK": "first-k", "LastK": "last-k"}
EVERY = Spec("layerwise")


def make(request: Request) -> Made:
    """Run each relaxation at each rank, and all directions once."""
    if any(rank < 1 for rank in request.ranks):
        raise ValueError(f"--ranks {min(request.ranks)} is invalid: expected integers >= 1")
    specs = {
        (kind, rank): Spec(entry, (f"options.rank={rank}",))
        for kind, entry in RELAXATIONS.items()
        for rank in sorted(set(request.ranks))
    }
    rows = obtain(request, [*specs.values(), EVERY])
    lines: dict[str, dict[int, Row]] = {kind: {} for kind in RELAXATIONS}
    for (kind, rank), spec in specs.items():
        if spec in rows:
            lines[kind][rank] = rows[spec]
    every = rows.get(EVERY)
    name = title(request, rows)
    with style.styled():
        made = style.figure(9.6, 3.4)
        left, right = made.subplots(1, 2)
        for axes, (measure, label) in zip((left, right), MEASURED.items(), strict=True):
            for number, (relaxation, by_rank) in enumerate(lines.items()):
                at = [
                    rank + 0.1 * (number - 1) for rank in by_rank
                ]  # Shifted, so that equal values do not hide each other.
                draw_line(axes, at, list(by_rank.values()), measure, number, relaxation)
            if every is not None:
                mean = float(np.mean(every.values(measure)))
                axes.axhline(mean, color=style.colour(6), linestyle="--", label="all directions")
            axes.set(xlabel="directions K", ylabel=label)
            style.whole_ticks(axes.xaxis)
        style.legend_beside(right)
        made.suptitle(name)
    return Made(made, _table(name, lines, every))


def _table(name: str, lines: dict[str, dict[int, Row]], every: Row | None) -> Table:
    found = [
        _line(kind, str(rank), row) for kind, rows in lines.items() for rank, row in rows.items()
    ]
    if every is not None:
        found.append(_line("all directions", "all", every))
    columns = ("relaxation", "K", "ACC", "BWT ÷ T", "seeds", "command")
    return Table(f"Rank and relaxation on {name}", columns, tuple(found))


def _line(kind: str, rank: str, row: Row) -> Line:
    acc, bwt = spread(row.values("acc")), spread(row.values("bwt_tasks"), digits=3, sign="+")
    return Line((kind, rank, acc, bwt, ", ".join(map(str, row.seeds)), row.command), row=row)
