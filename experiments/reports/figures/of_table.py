"""The figures that belong to a table of a report."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gradproj.experiments.reports.figures.curves import FIGURES, LINES, gains, sweep
from gradproj.experiments.reports.rows import Row
from gradproj.experiments.reports.tables.table import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["figures_of"]

# Figures show at most this many rows of a table: two panels of lines. Readers cannot distinguish
# 300 lines or matrices, and drawing them took a minute and 40 MB.
SHOWN = 2 * LINES


def figures_of(table: Table) -> dict[str, Figure]:
    """Draw the figures of a table, by title; call it inside one of the styles of `style`."""
    rows = _best(table.rows)
    of_all = f" (highest ACC: {SHOWN} of {len(table.rows)} rows)" if rows != table.rows else ""
    drawn = {title + of_all: draw(rows) for title, draw in FIGURES.items() if rows}
    if table.swept:
        drawn[f"ACC and BWT against {table.swept}"] = sweep(table)
    if table.comparisons:
        drawn["ACC minus that of the control, seed by seed"] = gains(table)
    return {title: figure for title, figure in drawn.items() if figure is not None}


def _best(rows: tuple[Row, ...]) -> tuple[Row, ...]:
    """Choose the rows that figures show, in the order of their table."""
    if len(rows) <= SHOWN:
        return rows
    accuracy = [float(np.mean(row.values("acc") or [-1.0])) for row in rows]
    best = sorted(range(len(rows)), key=lambda number: -accuracy[number])[:SHOWN]
    return tuple(rows[number] for number in sorted(best))
