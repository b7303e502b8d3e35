"""Layerwise optimization by gradient decomposition, with all variants of the paper's ablation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import gradproj as gp
from gradproj.experiments.common.schema import ranged
from gradproj.experiments.methods.projection.learner import (
    LayerNames,
    ProjectionLearner,
    replay_alone,
)

__all__ = ["Ours"]


@dataclass(frozen=True)
class Options:
    """Which constraints, on what, and how much replay.

    Attributes
    ----------
    rank : int, float or "full"
        Task-specific directions removed: a number K, a share of variance, or all of them.
        0 leaves the shared constraint alone: (b) and (c) of the ablation.
    relaxation : str
        Which K directions: principal ("pca"), or of the first or last K old tasks.
    layers : str
        "all" projects the whole network at once: (b), (d) and (e) of the ablation.
    strength : float
        Weight γ of the old tasks' gradients that are added after the projection; 0 is the paper's
        Eq. 11.
    replay : str
        Whether their "mean" is added, as `Projector` does by default, or their "sum", which the
        paper's numbers need. The sum grows with the number of tasks.
    """

    rank: int | float | Literal["full"] = ranged(5, low=0)
    relaxation: Literal["pca", "first", "last"] = "pca"
    layers: LayerNames = "module"
    strength: float = ranged(1.0, low=0.0)
    replay: Literal["mean", "sum"] = "mean"


class Ours(ProjectionLearner):
    """Shared and task-specific constraints on each layer's gradient, with PCA."""

    name = "ours"
    Options = Options

    def projection(self) -> gp.Method:
        """Eq. 11, with its relaxations."""
        options = self.options
        return gp.Decomposed(
            rank=None if options.rank == "full" else options.rank,
            relaxation=options.relaxation,
            strength=options.strength,
            replay=options.replay,
        )

    @classmethod
    def control(cls, options: Mapping[str, Any]) -> tuple[str, dict[str, Any]] | None:
        """The replay term alone."""
        return replay_alone(options["strength"], options.get("replay", "sum"))
