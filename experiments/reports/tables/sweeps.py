"""Sweeps: rows that differ in a single value, side by side."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from gradproj.experiments.reports.naming import completed, flatten, label_without
from gradproj.experiments.reports.rows import Row
from gradproj.experiments.reports.tables.controls import difference_to_control
from gradproj.experiments.reports.tables.table import Line, Table, listed, spread

__all__ = ["sweep_tables"]

# Two values are a comparison, which the other tables show; three begin to show a course.
_LEAST = 3


def sweep_tables(rows: Sequence[Row]) -> list[Table]:
    """Make a table for each value that at least three rows of one kind differ in alone."""
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
                spread(row.values("bwt"), digits=3, sign="+"),
                spread(row.values("forgetting")),
                spread(difference_to_control(row, rows), digits=2, sign="+"),
                listed(row.seeds),
            ),
            row=row,
        )
        for value, row in sorted(swept, key=lambda pair: _order(pair[0]))
    ]
    columns = (short, "ACC", "BWT", "forgetting", "ACC over its control", "seeds")
    return Table(f"{title}: {short}", columns, tuple(lines), swept=short)


def _order(value: Any) -> tuple[bool, float, str]:
    """Sort numbers by size, then words."""
    number = isinstance(value, int | float)
    return not number, float(value) if number else 0.0, str(value)
