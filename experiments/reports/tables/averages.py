"""Runs that were also evaluated with an exponential average of their weights."""

from __future__ import annotations

from collections.abc import Sequence

from gradproj.experiments.reports.comparison import compare
from gradproj.experiments.reports.rows import Row
from gradproj.experiments.reports.tables.controls import INTERVAL, gain_cells
from gradproj.experiments.reports.tables.table import Line, Table, listed, spread

__all__ = ["averaged_table"]


def averaged_table(rows: Sequence[Row]) -> Table | None:
    """Show runs that also evaluated an exponential average of their weights."""
    lines = []
    for row in rows:
        averaged = row.values("acc", averaged=True)
        if averaged:
            plain = row.values("acc")
            change = spread(
                [a - b for a, b in zip(averaged, plain, strict=True)], digits=2, sign="+"
            )
            gain = gain_cells(compare(row, rows, averaged=True))
            cells = (row.name.label, f"{row.config['ema']:g}", spread(plain), spread(averaged),
                     change, *gain, listed(row.seeds))  # fmt: skip
            lines.append(Line(cells, row=row))
    columns = ("method", "decay", "ACC", "ACC of the average", "change",
               "average minus control's average", INTERVAL, "seeds")  # fmt: skip
    title = "Exponential average of the weights"
    return Table(title, columns, tuple(lines)) if lines else None
