"""A table of a report: lines of text, and the rows they are made from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from gradproj.experiments.reports.rows import Row

__all__ = ["STATUS", "Line", "Table", "listed", "spread"]


# What a difference to the paper is called, and its sign, for those who see no colours.
STATUS = {
    "within": ("●", "within the paper's spread"),
    "near": ("◐", "within twice the spread"),
    "above": ("▲", "above by more than twice the spread"),
    "below": ("▼", "below by more than twice the spread"),
}


# The column of the training samples that a method keeps of each task.
STORED = "stored per task"


@dataclass(frozen=True)
class Line:
    """One line of a table; `status` is a key of `STATUS` or "", `row` what it was made from."""

    cells: tuple[str, ...]
    status: str = ""
    note: str = ""
    row: Row | None = None


@dataclass(frozen=True)
class Table:
    """A table and what its figures are drawn from.

    Attributes
    ----------
    rows : tuple of Row
        For curves, heat maps and the like.
    swept : str
        Name of what the lines vary.
    differences : tuple of tuple of float
        For each line, what is gained over something, seed by seed.
    """

    title: str
    columns: tuple[str, ...]
    lines: tuple[Line, ...]
    about: str = ""
    rows: tuple[Row, ...] = field(default=())
    swept: str = ""
    differences: tuple[tuple[float, ...], ...] = field(default=())


def spread(values: Sequence[float], digits: int = 1, sign: str = "") -> str:
    """Write mean ± standard deviation; a single value has no deviation.

    Examples
    --------
    >>> spread([82.0, 83.0]), spread([82.04]), spread([])
    ('82.5 ± 0.7', '82.0', '–')
    """
    if not values:
        return "–"
    mean = f"{float(np.mean(values)):{sign}.{digits}f}"
    return f"{mean} ± {np.std(values, ddof=1):.{digits}f}" if len(values) > 1 else mean


def listed(seeds: Sequence[int]) -> str:
    """Write the seeds of a row."""
    return ", ".join(map(str, seeds)) or "–"
