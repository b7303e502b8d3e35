"""How long the projection takes on the whole network, (d), and layer by layer, (f)."""

from __future__ import annotations

import numpy as np

from gradproj.experiments.reports import paper
from gradproj.experiments.reports.figures import style
from gradproj.experiments.reports.figures.request import Made, Request, Spec, obtain, title
from gradproj.experiments.reports.tables.table import Line, Table, spread

__all__ = ["make"]

ENTRIES = ("full", "layerwise")


def make(request: Request) -> Made:
    """Run both for three epochs, one at a time, and compare the seconds of training."""
    specs = {entry: Spec(entry, ("epochs=3",)) for entry in ENTRIES}
    rows = obtain(request, list(specs.values()), alone=True)
    shown = [entry for entry in ENTRIES if specs[entry] in rows]
    published = paper.seconds(request.benchmark)
    lines, seconds = [], []
    for entry in shown:
        row = rows[specs[entry]]
        taken = [run.seconds for run in row.finished]
        seconds.append(taken)
        printed = f"{published[entry]:.1f}" if entry in published else "–"
        cells = (paper.label(entry), printed, spread(taken), ", ".join(map(str, row.seeds)))
        lines.append(Line((*cells, row.command), row=row))
    benchmark = title(request, rows)
    with style.styled():
        made = style.figure(5.6, 3.0)
        axes = made.subplots()
        at = np.arange(len(shown))
        axes.barh(at, [np.mean(s) for s in seconds], height=0.5, color=style.colour(0),
                  label="measured, mean")  # fmt: skip
        for y, taken in zip(at, seconds, strict=True):
            axes.plot(taken, [y] * len(taken), "o", color=style.colour(5), zorder=3,
                      label="each seed" if y == 0 else None)  # fmt: skip
        if published:
            axes.plot([published[entry] for entry in shown], at, "D", color=style.colour(1),
                      zorder=3, label="paper (its own machine)")  # fmt: skip
        axes.set_yticks(at, [paper.label(entry) for entry in shown])
        axes.invert_yaxis()
        axes.grid(visible=False, axis="y")
        axes.set(xlabel="seconds of training, 3 epochs", title=benchmark)
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.22), ncols=3, fontsize="small")
    columns = ("method", "paper, s", "seconds", "seeds", "command")
    return Made(made, Table(f"Time on {benchmark}", columns, tuple(lines)))
