"""The figures, one module each. Its first line is the summary, and `make(request)` draws it."""

from __future__ import annotations

import sys
from collections.abc import Callable

from gradproj.experiments.common import registry
from gradproj.experiments.reports.figures import (
    gradient_magnitudes,
    k_sweep,
    layerwise,
    memory_sweep,
    old_losses,
    strength_sweep,
    time,
)
from gradproj.experiments.reports.figures.request import Made, Request

__all__ = ["FIGURES", "find", "summary"]

Maker = Callable[[Request], Made]

FIGURES: dict[str, Maker] = {
    "gradient-magnitudes": gradient_magnitudes.make,
    "k-sweep": k_sweep.make,
    "layerwise": layerwise.make,
    "memory-sweep": memory_sweep.make,
    "old-losses": old_losses.make,
    "strength-sweep": strength_sweep.make,
    "time": time.make,
}


def find(name: str) -> Maker:
    """Return the function that makes a figure; a user's own is named as `module:function`."""
    return registry.find(name, FIGURES, "figure")


def summary(make: Maker) -> str:
    """Return the summary of a figure, which is the first line of its module.

    Examples
    --------
    >>> summary(FIGURES["layerwise"])
    'GEM, A-GEM and (d), each on the whole network and layer by layer'
    """
    return (sys.modules[make.__module__].__doc__ or "").partition("\n")[0].rstrip(".")
