"""The paper's figures, one module each with `make(request)`."""

from __future__ import annotations

from collections.abc import Callable

from gradproj.experiments.figures import gradient_magnitudes, k_sweep, layerwise, time
from gradproj.experiments.figures.request import Made, Request

__all__ = ["FIGURES"]

FIGURES: dict[str, Callable[[Request], Made]] = {
    "gradient-magnitudes": gradient_magnitudes.make,
    "k-sweep": k_sweep.make,
    "layerwise": layerwise.make,
    "time": time.make,
}
