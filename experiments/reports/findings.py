"""The findings: a text whose numbers are filled in from the runs that it is about.

The text is `findings.in.md` in a folder of exported runs. It may contain these placeholders, where
NAME is a row of the report such as ``mnist-permutations/ours`` or ``split-cifar10/single,lr=0.1``:

- ``{acc NAME}``: ACC with its deviation over the seeds,
- ``{average NAME}``: the mean of the accuracies on the classes seen so far, per step,
- ``{gain NAME}``: ACC minus that of the control, with its 95 % interval,
- ``{best NAME}``: the same for the control at its best learning rate of those run,
- ``{cells STATUS}``: number of the paper's cells that are within, near, above or below it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from gradproj.experiments.reports.comparison import Comparison, compare, compare_at_best_rate
from gradproj.experiments.reports.rows import Row
from gradproj.experiments.reports.tables.controls import gain_cells
from gradproj.experiments.reports.tables.table import AVERAGE, spread

__all__ = ["SOURCE", "fill"]

# The file with the placeholders.
SOURCE = "findings.in.md"
NOT_RUN = "(not run)"
NO_CONTROL = "(control not run)"


def fill(text: str, rows: Sequence[Row], cells: Mapping[str, int]) -> str:
    """Replace the placeholders of a text by numbers.

    A row without a finished run becomes "(not run)", so that a text can be written before its runs.

    Parameters
    ----------
    text : str
    rows : sequence of Row
    cells : mapping
        Number of the paper's cells per status.

    Raises
    ------
    ValueError
        For an unknown placeholder.
    """
    named = {str(row.name): row for row in rows if row.finished}

    def number(found: re.Match[str]) -> str:
        kind, name = found.groups()
        if kind == "cells" and name in cells:
            return str(cells[name])
        if kind not in _KINDS:
            raise ValueError(
                f"{SOURCE}: {found[0]} is not a known placeholder; use {{acc NAME}}, "
                f"{{average NAME}}, {{gain NAME}}, {{best NAME}} or {{cells STATUS}} "
                f"with STATUS one of {', '.join(cells)}"
            )
        return _KINDS[kind](name, named)

    return re.sub(r"\{(\w+) ([^{}\n]+)\}", number, text)


def _acc(name: str, rows: Mapping[str, Row]) -> str:
    return spread(rows[name].values("acc")) if name in rows else NOT_RUN


def _average(name: str, rows: Mapping[str, Row]) -> str:
    return spread(rows[name].values(AVERAGE)) if name in rows else NOT_RUN


def _gain(name: str, rows: Mapping[str, Row]) -> str:
    if name not in rows:
        return NOT_RUN
    among = list(rows.values())
    return _difference(compare(rows[name], among) or compare_at_best_rate(rows[name], among))


def _best(name: str, rows: Mapping[str, Row]) -> str:
    if name not in rows:
        return NOT_RUN
    return _difference(compare_at_best_rate(rows[name], list(rows.values())))


def _difference(found: Comparison | None) -> str:
    if found is None:
        return NO_CONTROL
    difference, certainty = gain_cells(found)
    return f"{difference.split()[0]} {certainty if found.interval else f'({certainty})'}"


_KINDS: dict[str, Callable[[str, Mapping[str, Row]], str]] = {
    "acc": _acc,
    "average": _average,
    "gain": _gain,
    "best": _best,
}
