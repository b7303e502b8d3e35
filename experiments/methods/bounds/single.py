"""Fine-tuning: the lower bound, and variant (a) of the ablation."""

from __future__ import annotations

from gradproj.experiments.methods.learner import Learner

__all__ = ["Single"]


class Single(Learner):
    """Plain SGD on the stream, without protection against forgetting.

    As in GEM's released code, whose rates the presets have.
    """

    name = "single"
    scenarios = ("task", "domain", "class")
    augments = True
