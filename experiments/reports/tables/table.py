"""A table of a report: lines of text, and the rows that they are made from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from gradproj.experiments.reports.comparison import Comparison
from gradproj.experiments.reports.rows import Row

__all__ = ["AVERAGE", "BWT", "GAINS", "SETTINGS", "STATUS", "TRANSFER", "Line", "Table", "listed",
           "settings", "spread", "transfer"]  # fmt: skip


# Differences from the paper: a sign, for readers who cannot see the colours, and its meaning.
STATUS = {
    "within": ("●", "within the paper's spread"),
    "near": ("◐", "within twice the spread"),
    "above": ("▲", "above by more than twice the spread"),
    "below": ("▼", "below by more than twice the spread"),
}

# Differences from the control, only where the confidence interval does not contain zero.
GAINS = {
    "better": ("▲", "above the control: the whole 95 % interval lies above 0"),
    "worse": ("▼", "below the control: the whole 95 % interval lies below 0"),
}

# The column of training samples that a method stores per task.
STORED = "stored per task"
# The columns that say how a row was set up.
SETTINGS = ("γ", "λ", STORED)
# The two definitions of backward transfer, by their measures.
BWT = {"bwt_tasks": "BWT ÷ T", "bwt_pairs": "BWT ÷ (T−1)"}
# The metric of a run by which class-incremental systems are compared.
AVERAGE = "average_incremental_accuracy"
# The columns of what later tasks did to earlier ones.
TRANSFER = (*BWT.values(), "forgetting")


@dataclass(frozen=True)
class Line:
    """One line of a table.

    Attributes
    ----------
    cells : tuple of str
        One per column of the table.
    status : str
        A key of `STATUS` or `GAINS` that marks the cell "difference", or "".
    note : str
    row : Row or None
        The runs that it shows.
    """

    cells: tuple[str, ...]
    status: str = ""
    note: str = ""
    row: Row | None = None


@dataclass(frozen=True)
class Table:
    """A table and the data of its figures.

    Attributes
    ----------
    rows : tuple of Row
        Rows for curves, heat maps and similar figures.
    swept : str
        Name of the value that differs between the lines.
    comparisons : tuple of Comparison
        For each line, its comparison with the control.
    """

    title: str
    columns: tuple[str, ...]
    lines: tuple[Line, ...]
    about: str = ""
    rows: tuple[Row, ...] = field(default=())
    swept: str = ""
    comparisons: tuple[Comparison, ...] = field(default=())

    @property
    def notes(self) -> tuple[str, ...]:
        """The notes of the lines, each once; a line refers to its note by the place in this list.

        A note that belongs to one line starts with the name of that line.
        """
        used = Counter(line.note for line in self.lines if line.note)
        named = self.columns.index("method") if "method" in self.columns else 0
        names = {line.note: line.cells[named] for line in self.lines}
        return tuple(f"{names[n]}: {n}" if count == 1 else n for n, count in used.items())

    def note_number(self, line: Line) -> int | None:
        """Return the number of a line's note, from 1; None without a note."""
        notes = list(dict.fromkeys(other.note for other in self.lines if other.note))
        return notes.index(line.note) + 1 if line.note else None

    def without_empty(self, *names: str) -> Table:
        """Leave out those of the named columns that hold no value."""
        kept = [
            i
            for i, column in enumerate(self.columns)
            if column not in names or any(line.cells[i] != "–" for line in self.lines)
        ]
        lines = (replace(line, cells=tuple(line.cells[i] for i in kept)) for line in self.lines)
        return replace(self, columns=tuple(self.columns[i] for i in kept), lines=tuple(lines))


def settings(row: Row | None) -> tuple[str, str, str]:
    """Write the cells of `SETTINGS`."""
    if row is None:
        return "–", "–", "–"
    return row.strengths.replay, row.strengths.preservation, row.stored


def transfer(row: Row) -> tuple[str, ...]:
    """Write the cells of `TRANSFER`."""
    both = (spread(row.values(measure), digits=3, sign="+") for measure in BWT)
    return *both, spread(row.values("forgetting"))


def spread(values: Sequence[float], digits: int = 1, sign: str = "") -> str:
    """Write mean ± standard deviation; without the deviation for a single value.

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
