"""The control beside every projection: its replay term with no constraint at all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import gradproj as gp
from gradproj.experiments.common.schema import ranged
from gradproj.experiments.methods.projection.learner import ProjectionLearner

__all__ = ["Replay"]


@dataclass(frozen=True)
class Options:
    """`strength`: the weight γ of the old gradients; `replay`: of their mean or their sum."""

    strength: float = ranged(1.0, low=0.0)
    replay: Literal["mean", "sum"] = "mean"


class Replay(ProjectionLearner):
    """w = g + γ ḡ or g + γ Σ gᵢ on the same memory batches, without a projection."""

    name = "replay"
    Options = Options

    def projection(self) -> gp.Method:
        """Neither constraint, the replay term alone."""
        return gp.Decomposed(
            shared=False,
            specific=False,
            strength=self.options.strength,
            replay=self.options.replay,
        )
