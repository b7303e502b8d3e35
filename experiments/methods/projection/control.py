"""The control beside every projection: its replay term without any constraint."""

from __future__ import annotations

from dataclasses import dataclass

import gradproj as gp
from gradproj.experiments.common.schema import ranged
from gradproj.experiments.methods.projection.learner import (
    LayerNames,
    ProjectionLearner,
    Replay,
    Rule,
)

__all__ = ["ReplayAlone"]


@dataclass(frozen=True)
class Options:
    """How much is replayed, and when.

    Attributes
    ----------
    strength : float
        Weight γ of the old tasks' gradients.
    replay : str
        Whether it multiplies their "mean" or their "sum".
    rule : str
        "always"; "violated": only where the new gradient and the mean of the old ones have a
        negative product; "part-margin": as "violated", but always with a single old task.
    layers : str
        The groups of parameters that are tested for a violation, each on its own.
    """

    strength: float = ranged(1.0, low=0.0)
    replay: Replay = "mean"
    rule: Rule = "always"
    layers: LayerNames = "all"


class ReplayAlone(ProjectionLearner):
    """Add γ ḡ or γ Σ gᵢ to the new gradient, on the same memory batches as a projection.

    This is not a published system. It shows what a projection adds to replay.
    """

    name = "replay"
    Options = Options

    def projection(self) -> gp.Method:
        """Switch both constraints off, so that the replay term remains."""
        options = self.options
        return gp.Decomposed(
            shared=False,
            specific=False,
            strength=options.strength,
            replay=options.replay,
            rule=options.rule,
        )
