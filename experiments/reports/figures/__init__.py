"""The figures, one module each with `make(request)`."""

from __future__ import annotations

from collections.abc import Callable

from gradproj.experiments.reports.figures import (
    gradient_magnitudes,
    k_sweep,
    layerwise,
    memory_sweep,
    strength_sweep,
    time,
)
from gradproj.experiments.reports.figures.request import Made, Request

__all__ = ["FIGURES"]

FIGURES: dict[str, Callable[[Request], Made]] = {
    "gradient-magnitudes": gradient_magnitudes.make,
    "k-sweep": k_sweep.make,
    "layerwise": layerwise.make,
    "memory-sweep": memory_sweep.make,
    "strength-sweep": strength_sweep.make,
    "time": time.make,
}
