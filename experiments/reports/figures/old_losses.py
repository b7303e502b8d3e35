"""Decrease of the old losses along whole-network and layerwise updates (Eqs. 12 and 13)."""

from __future__ import annotations

import numpy as np

from gradproj.experiments.common.tables import merge
from gradproj.experiments.inspection.decrease import UPDATES, Decrease, measure_decrease
from gradproj.experiments.inspection.gradients import training_moments
from gradproj.experiments.inspection.subjects import from_benchmark
from gradproj.experiments.reports.figures import style
from gradproj.experiments.reports.figures.request import Made, Request
from gradproj.experiments.reports.tables.table import Line, Table
from gradproj.experiments.runs.jobs import parse_changes

__all__ = ["make"]

# Measurements, one before each step on the last task, and steps on each task before it.
MOMENTS, STEPS = 50, 50
LENGTHS = tuple(np.geomspace(1e-3, 1.0, 16).tolist())


def make(request: Request) -> Made:
    """Train for a few steps on every task, and try both updates while the last one is learned."""
    changes = merge(parse_changes(request.overrides), {"seed": request.seeds[0]})
    subject = from_benchmark(request.benchmark, changes, data_dir=request.data_dir)
    moments = training_moments(
        subject.model, subject.loss, subject.tasks, steps=STEPS, moments=MOMENTS, lr=subject.lr
    )
    found = measure_decrease(subject.model, subject.loss, moments, LENGTHS)
    with style.styled():
        made = style.figure(9.6, 3.4)
        left, right = made.subplots(1, 2)
        for number, update in enumerate(UPDATES):
            colour = style.colour(number)
            measured, predicted = _means(found, number)
            left.plot(found.lengths, measured, style.marker(number), color=colour, label=update)
            left.plot(found.lengths, predicted, color=colour, label=f"{update}, first order")
            right.plot(found.lengths, measured / predicted, marker=style.marker(number),
                       color=colour, label=update)  # fmt: skip
        # Longer steps increase the losses so much that the decreases would not be visible.
        most = max(float(_means(found, i)[0].max()) for i in range(len(UPDATES)))
        left.set(ylabel="decrease of the mean old loss", ylim=(-most, 2.5 * most))
        right.set(ylabel="measured / first order", ylim=(-1.0, 1.5))
        right.axhline(0.0, color=style.colour(6), linewidth=1.0)
        for axes in (left, right):
            axes.set(xscale="log", xlabel="step length η")
            axes.axvline(subject.lr, color=style.colour(6), linestyle=":", linewidth=1.0,
                         label="learning rate" if axes is left else None)  # fmt: skip
        made.legend(*left.get_legend_handles_labels(), loc="outside right upper", fontsize="small")
        made.suptitle(subject.name)
    return Made(made, _table(found, subject.name))


def _means(found: Decrease, update: int) -> tuple[np.ndarray, np.ndarray]:
    return found.measured[update].mean(axis=0), found.predicted[update].mean(axis=0)


def _table(found: Decrease, title: str) -> Table:
    columns = ["step length"]
    for update in UPDATES:
        columns += [f"{update}, measured", f"{update}, first order"]
    cells = [found.lengths, *(values for i in range(len(UPDATES)) for values in _means(found, i))]
    lines = [Line(tuple(f"{value:.2g}" for value in row)) for row in np.array(cells).T]
    about = (
        f"Mean over {found.measured.shape[1]} states; positive numbers are decreases of the mean "
        "loss of the old tasks."
    )
    return Table(f"Decrease of the old losses: {title}", tuple(columns), tuple(lines), about)
