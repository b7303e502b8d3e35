"""GEM, A-GEM and (d), each on the whole network and layer by layer."""

from __future__ import annotations

import numpy as np

from gradproj.experiments.reports import paper
from gradproj.experiments.reports.figures import style
from gradproj.experiments.reports.figures.request import Made, Request, Spec, obtain, title
from gradproj.experiments.reports.figures.series import MEASURED
from gradproj.experiments.reports.rows import Row
from gradproj.experiments.reports.tables.table import Line, Table, spread

__all__ = ["make"]

# Method: the entry on the whole network, the entry layer by layer.
PAIRS = {
    "GEM": ("gem", "gem-layerwise"),
    "A-GEM": ("agem", "agem-layerwise"),
    "Ours (d)": ("full", "layerwise"),
}
WAYS = ("whole network", "layerwise")


def make(request: Request) -> Made:
    """Run the six methods and draw ACC and BWT in pairs, with the paper's values if it has any."""
    specs = {entry: Spec(entry) for pair in PAIRS.values() for entry in pair}
    rows = obtain(request, list(specs.values()))
    by_entry = {entry: rows[spec] for entry, spec in specs.items() if spec in rows}
    table = next(table for table in paper.tables() if table.name == "layerwise")
    cells = table.cells.get(request.benchmark, {})
    benchmark = title(request, rows)
    with style.styled():
        made = style.figure(9.6, 3.4)
        left, right = made.subplots(1, 2)
        for axes, (measure, label) in zip((left, right), MEASURED.items(), strict=True):
            for way, name in enumerate(WAYS):
                at = np.arange(len(PAIRS)) + 0.3 * way - 0.15
                entries = [pair[way] for pair in PAIRS.values()]
                values = [_values(by_entry.get(entry), measure) for entry in entries]
                axes.errorbar(
                    at,
                    [float(np.mean(v)) if v else np.nan for v in values],
                    yerr=[float(np.std(v, ddof=1)) if len(v) > 1 else 0.0 for v in values],
                    fmt=style.marker(way),
                    color=style.colour(way),
                    markersize=7,
                    capsize=3,
                    label=name,
                )
                printed = [getattr(cells.get(entry), measure, None) for entry in entries]
                if any(value is not None for value in printed):
                    axes.plot(at, np.array(printed, dtype=float), "_", color=style.colour(way),
                              markersize=16, label=f"{name}, paper")  # fmt: skip
            axes.set_xticks(range(len(PAIRS)), list(PAIRS))
            axes.set(ylabel=label, xlim=(-0.5, len(PAIRS) - 0.5))
        style.legend_beside(right)
        made.suptitle(benchmark)
    lines = [
        _line(entry, by_entry[entry], cells.get(entry)) for entry in specs if entry in by_entry
    ]
    columns = ("method", "paper ACC", "ACC", "paper BWT", "BWT ÷ T", "seeds", "command")
    return Made(made, Table(f"Layerwise update on {benchmark}", columns, tuple(lines)))


def _values(row: Row | None, measure: str) -> list[float]:
    return row.values(measure) if row is not None else []


def _line(entry: str, row: Row, cell: paper.Cell | None) -> Line:
    acc = "–" if cell is None else f"{cell.acc:.1f}"
    bwt = "–" if cell is None or cell.bwt is None else f"{cell.bwt:+.3f}"
    cells = (
        paper.label(entry),
        acc,
        spread(row.values("acc")),
        bwt,
        spread(row.values("bwt_tasks"), digits=3, sign="+"),
        ", ".join(map(str, row.seeds)),
        row.command,
    )
    return Line(cells, row=row)
