"""Scaled gradient projection (Saha and Roy, 2023)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gradproj.experiments.common.schema import ranged
from gradproj.experiments.methods.projection import gpm

__all__ = ["SGP"]


@dataclass(frozen=True)
class Options(gpm.Options):
    """As GPM; `importance`: α, by which the directions' weights fall from the first, 10 there."""

    importance: float = ranged(10.0, low=0.0)


class SGP(gpm.GPM):
    """GPM whose directions are removed by their importance: w = g − g Bᵀ diag(importance) B."""

    name = "sgp"
    Options = Options

    def preservation(self) -> dict[str, Any]:
        """Hard, with importance weights."""
        return {**super().preservation(), "importance": self.options.importance}
