"""Runs that were also evaluated with an exponential average of their weights."""

from __future__ import annotations

from collections.abc import Sequence

from gradproj.experiments.reports.rows import Row
from gradproj.experiments.reports.tables.controls import difference_to_control
from gradproj.experiments.reports.tables.table import Line, Table, listed, spread

__all__ = ["averaged_table"]


def averaged_table(rows: Sequence[Row]) -> Table | None:
    """Show runs that also evaluated an exponential average of their weights."""
    lines = []
    for row in rows:
        averaged = row.values("acc", averaged=True)
        if averaged:
            plain = row.values("acc")
            pairs = [a - b for a, b in zip(averaged, plain, strict=True)]
            change = spread(pairs, digits=2, sign="+")
            over_control = spread(
                difference_to_control(row, rows, averaged=True), digits=2, sign="+"
            )
            cells = (row.name.label, f"{row.config['ema']:g}", spread(plain), spread(averaged),
                     change, over_control, listed(row.seeds))  # fmt: skip
            lines.append(Line(cells, row=row))
    columns = ("method", "decay", "ACC", "ACC of the average", "difference",
               "average over its control's", "seeds")  # fmt: skip
    title = "Exponential average of the weights"
    return Table(title, columns, tuple(lines)) if lines else None
