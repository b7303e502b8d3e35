"""Lines of means with error bars, shared by the figures of sweeps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from gradproj.experiments.reports.figures import style
from gradproj.experiments.reports.rows import Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["MEASURED", "draw_line"]

# The measures that figures of runs show, with the labels of their axes.
MEASURED = {"acc": "ACC (%)", "bwt_tasks": "BWT ÷ T (fraction)"}


def draw_line(
    axes: Axes, at: Sequence[float], rows: Sequence[Row], measure: str, number: int, label: str
) -> None:
    """Draw the mean of a measure over the seeds of each row, with its standard deviation."""
    values = [row.values(measure) for row in rows]
    axes.errorbar(
        at,
        [float(np.mean(v)) for v in values],
        yerr=[float(np.std(v, ddof=1)) if len(v) > 1 else 0.0 for v in values],
        marker=style.marker(number),
        color=style.colour(number),
        capsize=2,
        label=label,
    )
