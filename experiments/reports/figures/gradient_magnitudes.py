"""Norms of the gradients of old and new tasks, layer by layer."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gradproj.experiments.common.tables import merge
from gradproj.experiments.inspection.gradients import Inspection, short_run
from gradproj.experiments.inspection.subjects import from_benchmark
from gradproj.experiments.reports.figures import style
from gradproj.experiments.reports.figures.request import Made, Request
from gradproj.experiments.reports.tables.table import Line, Table
from gradproj.experiments.runs.jobs import parse_changes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["make"]

MOMENTS = 100


def make(request: Request) -> Made:
    """Train for a few steps on every task, and measure while the last one is learned."""
    changes = merge(parse_changes(request.overrides), {"seed": request.seeds[0]})
    subject = from_benchmark(request.benchmark, changes, data_dir=request.data_dir)
    found = short_run(
        subject.model, subject.loss, subject.tasks, steps=50, moments=MOMENTS, lr=subject.lr
    )
    with style.styled():
        made = style.figure(9.6, max(3.4, 0.16 * len(found.layers) + 1.2))
        left, right = made.subplots(1, 2)
        _histogram(left, found)
        _ranges(right, found)
        made.suptitle(subject.name)
    return Made(made, _table(found, subject.name))


def _histogram(axes: Axes, found: Inspection) -> None:
    norms = [np.concatenate([view.new_norms, view.old_norms.ravel()]) for view in found.layers]
    norms = [values[values > 0] for values in norms]
    edges = np.geomspace(min(map(np.min, norms)), max(map(np.max, norms)), 41).tolist()
    few = len(norms) <= len(style.COLOURS)
    if few:
        for number, (view, values) in enumerate(zip(found.layers, norms, strict=True)):
            axes.hist(values, edges, histtype="step", linewidth=1.6,
                      color=style.colour(number), label=view.name)  # fmt: skip
    else:
        axes.hist(np.concatenate(norms), edges, color=style.colour(0))
    axes.set(xscale="log", xlabel="norm of a layer's gradient", ylabel="gradients")
    style.plain_log_ticks(axes.xaxis)
    if few:
        axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=4, fontsize="small")


def _ranges(axes: Axes, found: Inspection) -> None:
    at = np.arange(len(found.layers))
    for number, (label, norms) in enumerate(
        (
            ("old tasks", [view.old_norms.ravel() for view in found.layers]),
            ("new task", [view.new_norms for view in found.layers]),
        )
    ):
        low, middle, high = np.array([np.percentile(n, (5, 50, 95)) for n in norms]).T
        axes.errorbar(
            middle,
            at + 0.2 * number - 0.1,
            xerr=[middle - low, high - middle],
            fmt=style.marker(number),
            color=style.colour(number),
            label=label,
        )
    axes.set_yticks(at, [view.name for view in found.layers])
    axes.invert_yaxis()
    axes.set(xscale="log", xlabel="norm: median, 5 to 95 %", ylabel="layer")
    style.plain_log_ticks(axes.xaxis)
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2, fontsize="small")


def _table(found: Inspection, title: str) -> Table:
    lines = []
    for view in found.layers:
        new, old = np.median(view.new_norms), np.median(view.old_norms)
        lines.append(Line((view.name, f"{view.size:,}", f"{new:.3g}", f"{old:.3g}")))
    columns = ("layer", "parameters", "median norm, new task", "median norm, old tasks")
    return Table(f"Gradient norms: {title}", columns, tuple(lines))
