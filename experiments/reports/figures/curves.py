"""The figures of a report, each drawn from the rows of one table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from gradproj.experiments.reports.figures import style
from gradproj.experiments.reports.figures.series import MEASURED
from gradproj.experiments.reports.rows import Row
from gradproj.experiments.reports.tables.table import Table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["FIGURES", "accuracy_curves", "corrected_share", "forgetting_by_task", "gains",
           "heat_maps", "sweep", "trade_off"]  # fmt: skip

Matrix = NDArray[np.float64]

# Lines per panel: each colour solid and dashed. Further lines go to panels below.
LINES = 2 * len(style.COLOURS)


def accuracy_curves(rows: Sequence[Row]) -> Figure | None:
    """Mean accuracy over the tasks seen so far, after each task."""
    return _curves(_of_matrices(rows, _seen), "tasks learned", "mean accuracy on them (%)")


def forgetting_by_task(rows: Sequence[Row]) -> Figure | None:
    """Drop of each task's accuracy from its best, after the last task."""
    return _curves(_of_matrices(rows, _drops), "task", "forgetting (points)")


def corrected_share(rows: Sequence[Row]) -> Figure | None:
    """Share of the layers whose gradient the projection corrected, over the run."""
    lines = []
    for number, row in enumerate(rows):
        logs = [run.corrected for run in row.finished if run.corrected]
        if logs:
            length = min(map(len, logs))
            shares = np.array([log[:length] for log in logs], dtype=np.float64)
            lines.append((number, row, 100 * shares))
    made = _curves(lines, "tasks", "layers corrected (%)", over_run=True)
    for axes in made.axes if made else ():
        axes.set_ylim(-3, 103)
    return made


def _curves(
    lines: Sequence[tuple[int, Row, Matrix]], x: str, y: str, over_run: bool = False
) -> Figure | None:
    """Draw one line per row with its spread over seeds (first axis), `LINES` per panel.

    The colour follows the position of the row in its table, so it is the same in all figures.
    """
    if not lines:
        return None
    panels = sorted({number // LINES for number, _, _ in lines})
    made = style.figure(7.4, 3.1 * len(panels))
    grid = made.subplots(len(panels), 1, squeeze=False, sharey=True, sharex=True)
    for axes, panel in zip(grid[:, 0], panels, strict=True):
        for number, row, values in lines:
            if number // LINES != panel:
                continue
            at = np.arange(1, values.shape[1] + 1, dtype=np.float64)
            if over_run:
                tasks = len(row.matrices()[0])
                at = (at - 0.5) / values.shape[1] * tasks
            _line(axes, at, values, row.name.label, number, marked=not over_run)
        axes.set(xlabel=x, ylabel=y)
        style.whole_ticks(axes.xaxis)
        style.legend_beside(axes)
    return made


def _of_matrices(
    rows: Sequence[Row], values: Callable[[Matrix], Matrix]
) -> list[tuple[int, Row, Matrix]]:
    """Compute a line from each complete accuracy matrix."""
    return [
        (number, row, np.stack([values(R) for R in row.matrices()]))
        for number, row in enumerate(rows)
        if row.matrices() and not any(np.isnan(R).any() for R in row.matrices())
    ]


def _line(axes: Axes, at: Matrix, values: Matrix, label: str, number: int, marked: bool) -> None:
    mean = values.mean(axis=0)
    kind = style.marker(number) if marked else ""
    colour, dashes = style.colour(number), style.dashes(number)
    axes.plot(at, mean, dashes, marker=kind, color=colour, linewidth=1.4, label=label)
    if len(values) > 1:
        deviation = values.std(axis=0, ddof=1)
        low, high = mean - deviation, mean + deviation
        axes.fill_between(at, low, high, color=colour, alpha=0.15, linewidth=0)


def trade_off(rows: Sequence[Row]) -> Figure | None:
    """ACC against BWT, with the spread of both over the seeds."""
    shown = [(number, row) for number, row in enumerate(rows) if row.values("bwt_tasks")]
    if not shown:
        return None
    made = style.figure(7.4, max(3.1, 0.2 * len(shown) + 0.8))
    axes = made.subplots()
    for number, row in shown:
        acc, bwt = row.values("acc"), row.values("bwt_tasks")
        axes.errorbar(
            float(np.mean(bwt)),
            float(np.mean(acc)),
            xerr=float(np.std(bwt, ddof=1)) if len(bwt) > 1 else None,
            yerr=float(np.std(acc, ddof=1)) if len(acc) > 1 else None,
            fmt=style.marker(number),
            color=style.colour(number),
            elinewidth=1.0,
            markersize=6.0,
            label=row.name.label,
        )
    axes.set(xlabel="BWT ÷ T (fraction)", ylabel="ACC (%)")
    style.legend_beside(axes)
    return made


def sweep(table: Table) -> Figure:
    """ACC and BWT at each value of a sweep, with their spread over the seeds."""
    # A fixed layout: a report may have a hundred sweeps, and a layout that measures every label
    # takes as long as drawing the figure.
    made = style.figure(7.4, 2.6, layout=None)
    made.subplots_adjust(left=0.09, right=0.985, bottom=0.19, top=0.96, wspace=0.25)
    rows = [(line.cells[0], line.row) for line in table.lines if line.row is not None]
    for axes, (measure, label) in zip(made.subplots(1, 2), MEASURED.items(), strict=True):
        found = [(value, row.values(measure)) for value, row in rows if row.values(measure)]
        axes.errorbar(
            [value for value, _ in found],
            [float(np.mean(v)) for _, v in found],
            yerr=[float(np.std(v, ddof=1)) if len(v) > 1 else 0.0 for _, v in found],
            marker=style.marker(0),
            color=style.colour(0),
            capsize=2,
        )
        axes.set(xlabel=table.swept, ylabel=label)
    return made


def gains(table: Table) -> Figure:
    """Differences from the control: one point per seed, their mean and its 95 % interval."""
    made = style.figure(7.4, 0.27 * len(table.lines) + 0.8)
    axes = made.subplots()
    axes.axvline(0.0, color=style.colour(6), linewidth=1.0)
    found = table.comparisons
    seeds = [(value, y) for y, one in enumerate(found) for value in one.differences]
    axes.plot(*zip(*seeds, strict=True), "o", color=style.colour(1), alpha=0.5, markersize=4.0,
              label="each seed")  # fmt: skip
    halves = [(c.interval[1] - c.interval[0]) / 2 if c.interval else np.nan for c in found]
    axes.errorbar([c.mean for c in found], range(len(found)), xerr=halves, fmt="D",
                  color=style.colour(0), markersize=5.0, elinewidth=1.2, capsize=2.0,
                  label="mean, 95 % interval")  # fmt: skip
    named = table.columns.index("method") + 1
    labels = [", ".join(line.cells[:named]) for line in table.lines]
    axes.set_yticks(range(len(labels)), labels)
    axes.invert_yaxis()
    axes.set(xlabel="ACC minus that of the control (points)")
    style.legend_beside(axes)
    return made


def heat_maps(rows: Sequence[Row]) -> Figure | None:
    """Accuracy matrices, mean over the seeds: one row after each task, one column per task."""
    shown = [row for row in rows if row.matrices()]
    if not shown:
        return None
    across = min(4, len(shown))
    down = -(-len(shown) // across)
    made = style.figure(2.35 * across + 0.7, 2.4 * down + 0.3)
    grid = made.subplots(down, across, squeeze=False)
    for axes in grid.flat[len(shown) :]:
        axes.set_visible(False)
    for axes, row in zip(grid.flat, shown, strict=False):
        R = 100 * np.mean(row.matrices(), axis=0)
        image = axes.imshow(R, vmin=0, vmax=100, cmap="viridis", interpolation="nearest")
        axes.set_title(_short(row.name.label), fontsize="small")
        axes.set(xlabel="accuracy on task", ylabel="after task")
        ticks = np.unique(np.linspace(0, len(R) - 1, min(5, len(R))).round().astype(int))
        axes.set_xticks(ticks, (ticks + 1).astype(str))
        axes.set_yticks(ticks, (ticks + 1).astype(str))
        axes.grid(False)
    made.colorbar(image, ax=grid, label="accuracy (%)", shrink=0.9, pad=0.02)
    return made


def _short(text: str, length: int = 28) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"


def _seen(R: Matrix) -> Matrix:
    return np.array([100 * R[i, : i + 1].mean() for i in range(len(R))])


def _drops(R: Matrix) -> Matrix:
    best = np.array([R[j:, j].max() for j in range(len(R))])
    drops: Matrix = 100 * (best - R[-1])
    return drops


# Title and function of each figure of a table, in the order of the page.
FIGURES: dict[str, Callable[[Sequence[Row]], Figure | None]] = {
    "Average accuracy over tasks": accuracy_curves,
    "ACC against BWT": trade_off,
    "Forgetting of each task": forgetting_by_task,
    "Share of layers corrected": corrected_share,
    "Accuracy matrices": heat_maps,
}
