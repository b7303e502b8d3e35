"""Orthogonal weight modification (Zeng et al., 2019)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gradproj.experiments.common.schema import ranged
from gradproj.experiments.methods.projection.preserving import PreservingLearner

__all__ = ["OWM"]


@dataclass(frozen=True)
class Options:
    """The regulariser.

    Attributes
    ----------
    alpha : float
        α in w = g (I + S/α)⁻¹ with the plain second moments S, which are means over samples. The
        published code adds one product of mean inputs per batch and has α = 1; over a task of 100
        batches that is 0.01 here.
    samples : int
        Training samples of a task by which its moments are measured; 0 takes all.
    """

    alpha: float = ranged(0.01, low=1e-12)
    samples: int = ranged(0, low=0)


class OWM(PreservingLearner):
    """The soft projection with a small regulariser in place of a strength.

    As published: the projector and its small regulariser. Not as published: there the projector is
    updated at every batch, with the mean of its inputs. Here it is computed at the end of a task
    from the inputs of single samples.
    """

    name = "owm"
    Options = Options

    def preservation(self) -> dict[str, Any]:
        """Return a soft projection with λ = 1/α on unscaled moments."""
        return {"strength": 1.0 / self.options.alpha, "scaled": False}
