"""The control beside every projection: its replay term with no constraint at all."""

from __future__ import annotations

from dataclasses import dataclass

import gradproj as gp
from gradproj.experiments.projection import ProjectionLearner
from gradproj.experiments.schema import ranged

__all__ = ["Replay"]


@dataclass(frozen=True)
class Options:
    """`strength`: the weight γ of each old task's gradient."""

    strength: float = ranged(0.5, low=0.0)


class Replay(ProjectionLearner):
    """w = g + γ Σ gᵢ on the same memory batches, with no projection."""

    name = "replay"
    Options = Options

    def projection(self) -> gp.Method:
        """Neither constraint, the replay term alone."""
        return gp.Decomposed(
            shared=False, specific=False, strength=self.options.strength, replay="sum"
        )
