"""GEM (Lopez-Paz and Ranzato, 2017), on the whole network or layer by layer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import gradproj as gp
from gradproj.experiments.common.schema import ranged
from gradproj.experiments.methods.projection.learner import (
    BEFORE_REPLAY,
    LayerNames,
    ProjectionLearner,
    Replay,
    replay_alone,
)

__all__ = ["GEM"]


@dataclass(frozen=True)
class Options:
    """How GEM runs.

    Attributes
    ----------
    strength : float
        On a violation, at least γ of the old gradients is added; 0 is the problem without it.
    replay : str
        Whether γ multiplies their "mean" or their "sum". The published runs use 0.5 of the sum.
    ridge : float
        Added to the diagonal of the dual problem; 0.001 in the published code.
    layers : str
        "all" is GEM as published.
    """

    strength: float = ranged(1.0, low=0.0)
    replay: Replay = "mean"
    ridge: float = ranged(0.0, low=0.0)
    layers: LayerNames = "all"


class GEM(ProjectionLearner):
    """Closest step that increases no old task's memory loss, to first order.

    As published, in the preset `gem-released`: the dual problem with its bound of 0.5 and its ridge
    of 0.001, and gradients of whole memories. The other presets draw 20 samples of each memory, as
    the paper's text says, and have no ridge. Not as published: a memory here keeps the latest
    samples of a task exactly. The published ring drops four samples in each turn and does not reset
    its position between tasks.
    """

    name = "gem"
    Options = Options

    def projection(self) -> gp.Method:
        """Return the problem with one constraint per old task."""
        options = self.options
        return gp.GEM(strength=options.strength, replay=options.replay, ridge=options.ridge)

    @classmethod
    def control(cls, options: Mapping[str, Any]) -> tuple[str, dict[str, Any]] | None:
        """Return the replay term alone, added at every step.

        GEM adds it only if some old task's constraint is violated. With many old tasks that is
        nearly every step.
        """
        return replay_alone(options["strength"], options.get("replay", BEFORE_REPLAY))
