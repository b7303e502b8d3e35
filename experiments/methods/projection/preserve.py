"""Soft projection in input space: no stored samples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gradproj.experiments.common.schema import ranged
from gradproj.experiments.methods.projection.preserving import PreservingLearner

__all__ = ["Preserve"]


@dataclass(frozen=True)
class Options:
    """How strongly the old tasks' outputs are kept.

    Attributes
    ----------
    strength : float
        λ in w = g (I + λS)⁻¹, where S is the sum of the old tasks' second moments; 0 is
        fine-tuning.
    scaled : bool
        Whether the moments of each task and layer are scaled to mean eigenvalue 1, which makes λ
        independent of the scale of the activations.
    samples : int
        Training samples of a task by which its moments are measured; 0 takes all.
    """

    strength: float = ranged(1.0, low=0.0)
    scaled: bool = True
    samples: int = ranged(0, low=0)


class Preserve(PreservingLearner):
    """Solve argmin ½‖w − g‖² + λ/2 · tr(w S wᵀ) for each layer and step along w.

    This is a method of this project. OWM has the same formula with a small regulariser 1/λ.
    """

    name = "preserve"
    Options = Options

    def preservation(self) -> dict[str, Any]:
        """Return a soft projection."""
        return {"strength": self.options.strength, "scaled": self.options.scaled}
