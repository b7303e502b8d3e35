"""Sweeps: rows that differ in a single value."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from gradproj.experiments.reports.comparison import compare
from gradproj.experiments.reports.naming import completed, flatten, label_without
from gradproj.experiments.reports.rows import Row
from gradproj.experiments.reports.tables.controls import INTERVAL, gain_cells
from gradproj.experiments.reports.tables.table import (
    TRANSFER,
    Line,
    Table,
    listed,
    spread,
    transfer,
)

__all__ = ["sweep_tables"]

# Two values are a comparison, which the other tables show; three begin to show a trend.
_LEAST = 3


def sweep_tables(rows: Sequence[Row]) -> list[Table]:
    """Make one table per option in which at least three otherwise equal rows differ."""
    found: dict[tuple[str, str], list[tuple[Any, Row]]] = {}
    for row in rows:
        values = flatten(completed(row.config))
        for key, value in values.items() if row.finished else ():
            if key == "method":
                continue
            others = {k: v for k, v in values.items() if k != key}
            kind = json.dumps(others, sort_keys=True)
            found.setdefault((key, kind), []).append((value, row))
    tables = [_table(key, swept, rows) for (key, _), swept in found.items() if len(swept) >= _LEAST]
    return sorted(tables, key=lambda table: table.title)


def _table(key: str, swept: Sequence[tuple[Any, Row]], rows: Sequence[Row]) -> Table:
    short = key.removeprefix("options.")
    title = label_without(key, swept[0][1].config)
    lines = [
        Line(
            (
                str(value),
                spread(row.values("acc")),
                *transfer(row),
                *gain_cells(compare(row, rows)),
                listed(row.seeds),
            ),
            row=row,
        )
        for value, row in sorted(swept, key=lambda pair: _order(pair[0]))
    ]
    columns = (short, "ACC", *TRANSFER, "minus control", INTERVAL, "seeds")
    return Table(f"{title}: {short}", columns, tuple(lines), swept=short)


def _order(value: Any) -> tuple[bool, float, str]:
    """Sort numbers by size, then words."""
    number = isinstance(value, int | float)
    return not number, float(value) if number else 0.0, str(value)
