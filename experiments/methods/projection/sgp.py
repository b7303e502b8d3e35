"""Scaled gradient projection (Saha and Roy, 2023)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gradproj.experiments.common.schema import ranged
from gradproj.experiments.methods.projection import gpm

__all__ = ["SGP"]


@dataclass(frozen=True)
class Options(gpm.Options):
    """The options of GPM, and importance weights.

    Attributes
    ----------
    importance : float
        α, which controls how fast the weights of the directions decrease. The paper has 10.
    """

    importance: float = ranged(10.0, low=0.0)


class SGP(gpm.GPM):
    """GPM whose directions are removed by their importance: w = g − g Bᵀ diag(importance) B.

    As published: the importance of new directions and its growth for old ones
    (`gradproj.input_basis`). The remarks on `gpm` apply. α is that of CIFAR-100 everywhere.
    """

    name = "sgp"
    Options = Options

    def preservation(self) -> dict[str, Any]:
        """Return a hard projection with importance weights."""
        return {**super().preservation(), "importance": self.options.importance}
