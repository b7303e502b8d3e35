"""Soft projection in input space of the new gradient and the replay term together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import gradproj as gp
from gradproj.experiments.common.schema import ranged
from gradproj.experiments.methods.projection import preserve
from gradproj.experiments.methods.projection.learner import (
    BEFORE_REPLAY,
    ProjectionLearner,
    Replay,
    replay_alone,
)
from gradproj.experiments.methods.projection.preserving import PreservingLearner

__all__ = ["PreserveReplay"]


@dataclass(frozen=True)
class Options(preserve.Options):
    """As `preserve`, with replay.

    Attributes
    ----------
    gamma : float
        Weight γ of the old tasks' gradients, which `replay` calls its strength.
    replay : str
        Whether their "mean" or their "sum" is added.
    """

    gamma: float = ranged(1.0, low=0.0)
    replay: Replay = "mean"


class PreserveReplay(PreservingLearner, ProjectionLearner):
    """w = (g + γ Σ gᵢ)(I + λS)⁻¹ with the gradients gᵢ of the old tasks' memories.

    The whole update is projected. With g alone projected, the replay term moves directions in which
    the new gradient cannot follow. This is a method of this project.
    """

    name = "preserve-replay"
    Options = Options
    saved = (*ProjectionLearner.saved, "preserver")

    def preservation(self) -> dict[str, Any]:
        """Return the soft projection of `preserve`."""
        return {"strength": self.options.strength, "scaled": self.options.scaled}

    def projection(self) -> gp.Method:
        """Return the replay term alone; the preserver then projects the sum."""
        return gp.Decomposed(
            shared=False,
            specific=False,
            strength=self.options.gamma,
            replay=self.options.replay,
        )

    @classmethod
    def control(cls, options: Mapping[str, Any]) -> tuple[str, dict[str, Any]] | None:
        """Return the replay term alone."""
        return replay_alone(options["gamma"], options.get("replay", BEFORE_REPLAY))
