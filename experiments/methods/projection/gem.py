"""GEM (Lopez-Paz and Ranzato, 2017), on the whole network or layer by layer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import gradproj as gp
from gradproj.experiments.common.schema import ranged
from gradproj.experiments.methods.projection.learner import (
    LayerNames,
    ProjectionLearner,
    replay_alone,
)

__all__ = ["GEM"]


@dataclass(frozen=True)
class Options:
    """`strength`: least dual variable on a violation; `layers`: "all" is GEM as published."""

    strength: float = ranged(0.0, low=0.0)
    layers: LayerNames = "all"


class GEM(ProjectionLearner):
    """Closest step that increases no old task's memory loss, to first order."""

    name = "gem"
    Options = Options

    def projection(self) -> gp.Method:
        """One constraint for each old task."""
        return gp.GEM(strength=self.options.strength)

    @classmethod
    def control(cls, options: Mapping[str, Any]) -> tuple[str, dict[str, Any]] | None:
        """The replay term alone: GEM adds at least γ of every old gradient."""
        return replay_alone(options["strength"], "sum")
