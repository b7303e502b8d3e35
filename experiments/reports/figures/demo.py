"""The demo: four methods on permuted digits, with a table and a figure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from rich.table import Table

from gradproj.experiments.reports.figures import style
from gradproj.experiments.reports.tables.table import BWT
from gradproj.experiments.runs.folder import RunFolder
from gradproj.experiments.runs.grid import Job
from gradproj.experiments.runs.metrics import average_accuracy, backward_transfer

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["METHODS", "collect", "draw", "draw_accuracies", "tabulate"]


METHODS = {
    "single": "fine-tuning",
    "preserve": "preserve",
    "replay": "replay",
    "ours": "ours",
}


@dataclass
class Result:
    """The runs of one method: accuracy matrices of all seeds, and stored samples per task."""

    matrices: list[NDArray[np.float64]] = field(default_factory=list)
    stored: float | None = None


Results = Mapping[str, Result]


def collect(jobs: Sequence[Job]) -> dict[str, Result]:
    """Read the results of finished jobs."""
    results: dict[str, Result] = {}
    for job in jobs:
        found = RunFolder(job.folder).read_result()
        result = results.setdefault(job.config.method, Result())
        result.matrices.append(np.asarray(found["accuracy_matrix"], dtype=np.float64))
        result.stored = found["stored_per_task"]
    return results


def tabulate(results: Results) -> Table:
    """Make the table of mean ± standard deviation over the seeds."""
    title = "permuted digits, 10 tasks, in percent"
    table = Table(title=title, title_justify="left")
    for column in ("method", "stored", "ACC", BWT["bwt_pairs"], "seeds"):
        table.add_column(column, justify="left" if column == "method" else "right")
    for method, result in results.items():
        acc = [100 * average_accuracy(R) for R in result.matrices]
        bwt = [100 * backward_transfer(R, "pairs") for R in result.matrices]
        stored = "–" if result.stored is None else f"{result.stored:g}"
        seeds = str(len(result.matrices))
        table.add_row(METHODS[method], stored, _spread(acc), _spread(bwt), seeds)
    return table


def draw(results: Results, path: Path) -> Path:
    """Save one panel per method: accuracy of each task since it was learned, mean over seeds."""
    with style.styled():
        figure = style.figure(2.25 * len(results), 2.7)
        panels = np.atleast_1d(np.asarray(figure.subplots(1, len(results), sharey=True)))
        for panel, (method, result) in zip(panels, results.items(), strict=True):
            draw_accuracies(panel, np.mean(result.matrices, axis=0))
            stored = f"{result.stored:g} stored per task" if result.stored else "no stored samples"
            panel.set_title(METHODS[method], loc="left", fontsize=10.5, weight="bold", pad=18)
            panel.text(0.0, 1.04, stored, transform=panel.transAxes, alpha=0.65)
        panels[0].set_ylabel("test accuracy")
        # The curves of fine-tuning fill the first panel, so the legend is in the last one.
        panels[-1].legend(loc="lower left", handlelength=1.2)
        figure.supxlabel("tasks learned", fontsize="medium")
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=200)
    return path


def draw_accuracies(panel: Axes, R: NDArray[np.float64]) -> None:
    """Draw the accuracy of each task since it was learned, and the mean of those learned so far."""
    from matplotlib import colormaps
    from matplotlib.ticker import PercentFormatter

    tasks = np.arange(1, len(R) + 1)
    for j in range(len(R)):
        colour = colormaps["viridis"](0.95 * j / len(R))
        label = "one task" if j == len(R) // 2 else None
        panel.plot(tasks[j:], R[j:, j], ".-", color=colour, linewidth=1, label=label)
    learned = [R[i, : i + 1].mean() for i in range(len(R))]
    panel.plot(tasks, learned, color="black", linewidth=2.2, label="mean")
    if not math.isnan(learned[-1]):
        panel.annotate(
            f"{learned[-1]:.0%}",
            (tasks[-1], learned[-1]),
            xytext=(5, 0),
            textcoords="offset points",
            va="center",
            weight="bold",
            annotation_clip=False,
        )
    panel.set(ylim=(0, 1))
    panel.yaxis.set_major_formatter(PercentFormatter(1))
    style.whole_ticks(panel.xaxis, most=5)
    panel.grid(alpha=0.15)


def _spread(values: Sequence[float]) -> str:
    deviation = float(np.std(values, ddof=1)) if len(values) > 1 else 0.0
    return f"{np.mean(values):.1f} ± {deviation:.1f}"
