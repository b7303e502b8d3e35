"""The paper's figures, one module each: NAME, HELP and `make(request)`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gradproj.experiments.figures import gradient_magnitudes, k_sweep, layerwise, time
from gradproj.experiments.figures.request import Made, Request

__all__ = ["FIGURES", "PaperFigure"]


@dataclass(frozen=True)
class PaperFigure:
    """A figure and what it shows."""

    help: str
    make: Callable[[Request], Made]


FIGURES = {
    "gradient-magnitudes": PaperFigure(gradient_magnitudes.HELP, gradient_magnitudes.make),
    "k-sweep": PaperFigure(k_sweep.HELP, k_sweep.make),
    "layerwise": PaperFigure(layerwise.HELP, layerwise.make),
    "time": PaperFigure(time.HELP, time.make),
}
