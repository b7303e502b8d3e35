"""ACC against the number of stored samples per task."""

from __future__ import annotations

import numpy as np

from gradproj.experiments.reports import paper
from gradproj.experiments.reports.figures import style
from gradproj.experiments.reports.figures.request import Made, Request, Spec, obtain, title
from gradproj.experiments.reports.figures.series import draw_line
from gradproj.experiments.reports.rows import Row
from gradproj.experiments.reports.tables.table import STORED, Line, Table, spread

__all__ = ["make"]

WITHOUT = ("preserve", "gpm", "single")
WITH = ("preserve-replay", "ours", "replay", "gem")


def make(request: Request) -> Made:
    """Run the methods without stored samples once, the others with each size of the memory."""
    if any(size < 1 for size in request.memory):
        raise ValueError(f"--memory {min(request.memory)} is too small; pass whole numbers >= 1")
    sizes = sorted(set(request.memory))
    none = {entry: Spec(entry) for entry in WITHOUT}
    some = {
        (entry, size): Spec(entry, (f"memory.per_task={size}",)) for entry in WITH for size in sizes
    }
    rows = obtain(request, [*none.values(), *some.values()])
    lines: dict[str, dict[int, Row]] = {entry: {} for entry in (*WITHOUT, *WITH)}
    for entry, spec in none.items():
        if spec in rows:
            lines[entry][0] = rows[spec]
    for (entry, size), spec in some.items():
        if spec in rows:
            lines[entry][size] = rows[spec]
    name = title(request, rows)
    with style.styled():
        made = style.figure(6.4, 3.6)
        axes = made.subplots()
        place = {size: i for i, size in enumerate([0, *sizes])}
        for number, (entry, found) in enumerate(lines.items()):
            if not found:
                continue
            # Side by side, not hidden.
            at = [place[size] + 0.05 * (number - len(lines) / 2) for size in found]
            draw_line(axes, at, list(found.values()), "acc", number, paper.label(entry))
            if entry in WITHOUT:
                mean = float(np.mean(found[0].values("acc")))
                axes.axhline(mean, color=style.colour(number), linestyle=":", linewidth=1.0)
        axes.set_xticks(list(place.values()), [str(size) for size in place])
        axes.set(xlabel="stored samples per task", ylabel="ACC (%)")
        style.legend_beside(axes)
        made.suptitle(name)
    return Made(made, _table(name, lines))


def _table(name: str, lines: dict[str, dict[int, Row]]) -> Table:
    found = [
        Line(
            (
                paper.label(entry),
                str(size),
                spread(row.values("acc")),
                spread(row.values("bwt_tasks"), digits=3, sign="+"),
                ", ".join(map(str, row.seeds)),
                row.command,
            ),
            row=row,
        )
        for entry, rows in lines.items()
        for size, row in rows.items()
    ]
    columns = ("method", STORED, "ACC", "BWT ÷ T", "seeds", "command")
    return Table(f"Stored samples on {name}", columns, tuple(found))
