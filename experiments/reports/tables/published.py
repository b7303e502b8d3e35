"""The tables that compare runs with the paper's numbers, and the table of all other rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from gradproj.experiments.reports import paper
from gradproj.experiments.reports.paper import Cell, PaperTable
from gradproj.experiments.reports.rows import Row
from gradproj.experiments.reports.tables.table import (
    AVERAGE,
    SETTINGS,
    STATUS,
    TRANSFER,
    Line,
    Table,
    listed,
    settings,
    spread,
    transfer,
)
from gradproj.experiments.runs import presets

__all__ = ["other_table", "paper_table", "printed"]

# The last columns of these tables.
_LAST = ("seeds", "minutes", "command")
AVERAGE_ABOUT = (
    "The average over steps is the mean of the accuracies on the classes seen so far, per step. "
    "ACC is the accuracy after the last step."
)


def paper_table(
    table: PaperTable, benchmark: str, rows: Sequence[Row], notes: Mapping[str, str]
) -> Table | None:
    """Compare the runs of a benchmark with the paper's cells; None if no cell has a run."""
    cells = table.cells.get(benchmark, {})
    by_preset = {preset: row for row in rows for preset in row.name.presets}
    if not any(f"{benchmark}/{entry}" in by_preset for entry in cells):
        return None
    with_bwt = any(cell.bwt is not None for cell in cells.values())
    measured = "measured ACC" if table.metric == "acc" else "measured average incremental accuracy"
    columns = ["method", "paper ACC", measured, "difference"]
    columns += ["paper BWT"] if with_bwt else []
    columns += [*TRANSFER, *SETTINGS, *_LAST]
    lines, used = [], []
    for entry, cell in cells.items():
        preset = f"{benchmark}/{entry}"
        row = by_preset.get(preset)
        line = _paper_line(table, entry, preset, cell, row, with_bwt, notes)
        lines.append(line)
        used += [row] if row is not None and row.finished else []
    about = table.about
    if not all(cell.spread is not None for cell in cells.values()) and any(
        c.judge for c in cells.values()
    ):
        about += (" The paper gives no deviations here. Differences are judged by the deviation of "
                  "its own method in the main table.")  # fmt: skip
    found = Table(table.title, tuple(columns), tuple(lines), about.strip(), tuple(used))
    return found.without_empty("γ", "λ")


def _paper_line(
    table: PaperTable,
    entry: str,
    preset: str,
    cell: Cell,
    row: Row | None,
    with_bwt: bool,
    notes: Mapping[str, str],
) -> Line:
    bwt = ["–" if cell.bwt is None else f"{cell.bwt:+.3f}"] if with_bwt else []
    label = table.labels.get(entry) or paper.label(entry).removesuffix(", 3 epochs")
    start = [label, printed(cell)]
    if row is None:
        made = f"gradproj run {preset} --seeds 0 1 2" if preset in presets.available() else "–"
        empty = ["–"] * (len(TRANSFER) + len(SETTINGS) + len(_LAST) - 1)
        return Line((*start, "no run", "–", *bwt, *empty, made), note=cell.note)
    values = row.values(table.metric)
    if not values:
        state = "unfinished" if row.unfinished else "not measured"
        empty = ["–"] * len(TRANSFER)
        return Line((*start, state, "–", *bwt, *empty, *_tail(row)), note=cell.note, row=row)
    difference = float(np.mean(values)) - cell.acc
    status = judge(difference, cell.judge)
    sign = f" {STATUS[status][0]}" if status else ""
    shown = f"{round(difference, 1) + 0.0:+.1f}{sign}"  # + 0.0: there is no -0.0 here
    cells = (*start, spread(values), shown, *bwt, *transfer(row), *_tail(row))
    note = " ".join(filter(None, (cell.note, _note(row, preset, notes))))
    return Line(cells, status, note, row)


def printed(cell: Cell) -> str:
    """Write an accuracy as the paper prints it, with its deviation if there is one."""
    acc = f"{cell.acc:g}" if cell.acc * 10 % 1 > 1e-6 else f"{cell.acc:.1f}"
    return f"{acc} ± {cell.spread:.1f}" if cell.spread is not None else acc


def judge(difference: float, deviation: float | None) -> str:
    """Classify a difference, rounded as it is printed; "" without a deviation to judge it by.

    Examples
    --------
    >>> judge(0.3, 0.3), judge(-0.6, 0.3), judge(-0.7, 0.3), judge(2.0, None)
    ('within', 'near', 'below', '')
    """
    if deviation is None:
        return ""
    size = round(abs(difference), 1)
    if size <= deviation:
        return "within"
    if size <= round(2 * deviation, 1):
        return "near"
    return "above" if difference > 0 else "below"


def other_table(rows: Sequence[Row], used: Sequence[Row], notes: Mapping[str, str]) -> Table | None:
    """List the rows that do not belong to any table of the paper.

    Class-incremental rows also have their average over the steps, by which they are ordered.
    """
    rest = [row for row in rows if not any(row is other for other in used)]
    if not rest:
        return None
    averages = rest[0].scenario == "class"
    if averages:
        rest.sort(key=lambda row: -float(np.mean(row.values(AVERAGE) or [0.0])))
    columns = ("method", *(("average over steps",) if averages else ()), "measured ACC")
    lines = []
    for row in rest:
        acc = spread(row.values("acc")) if row.finished else "unfinished"
        average = (spread(row.values(AVERAGE)),) if averages else ()
        cells = (row.name.label, *average, acc, *transfer(row), *_tail(row))
        lines.append(Line(cells, "", _note(row, str(row.name), notes), row))
    finished = tuple(row for row in rest if row.finished)
    columns = (*columns, *TRANSFER, *SETTINGS, *_LAST)
    title = "Not in the paper's tables"
    table = Table(title, columns, tuple(lines), AVERAGE_ABOUT if averages else "", rows=finished)
    return table.without_empty("γ", "λ")


def _tail(row: Row) -> tuple[str, ...]:
    minutes = f"{row.minutes:.1f}" if row.finished else "–"
    seeds = listed(row.seeds)
    if row.unfinished:
        seeds = f"{seeds} ({len(row.unfinished)} unfinished)"
    stuck = sum(bool(run.at_chance) for run in row.finished)
    if stuck:
        seeds = f"{seeds} ({stuck} at chance)"
    return *settings(row), seeds, minutes, row.command


def _note(row: Row, preset: str, notes: Mapping[str, str]) -> str:
    names = (preset, str(row.name), *row.name.presets)
    return next((notes[name] for name in names if name in notes), "")
