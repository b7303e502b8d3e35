"""Multimodel: each task has its own input layer in front of shared layers."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor, nn

from gradproj.experiments.common import seeds
from gradproj.experiments.common.schema import ranged
from gradproj.experiments.common.seeds import seeded
from gradproj.experiments.methods.learner import Learner
from gradproj.experiments.methods.setup import Step
from gradproj.experiments.streams import Task

__all__ = ["Multimodel"]


@dataclass(frozen=True)
class Options:
    """The layers.

    Attributes
    ----------
    hidden : int
        Units of the private and of the shared hidden layer.
    """

    hidden: int = ranged(100, low=1)


class Multimodel(Learner):
    """A private first layer for each task; the hidden and the output layer are shared.

    As in GEM's released code ("multimodal"), whose rate the presets have.
    """

    name = "multimodel"
    Options = Options

    def build_model(self) -> nn.Module:
        """Make the layers with torch's default weights and zero biases."""
        hidden, inputs = self.options.hidden, math.prod(self.stream.input_shape)
        with seeded(seeds.derive(self.config.seed, "weights")):
            model = nn.ModuleDict(
                {
                    "private": nn.ModuleList(nn.Linear(inputs, hidden) for _ in self.stream.tasks),
                    "shared": nn.Sequential(
                        nn.Linear(hidden, hidden),
                        nn.ReLU(),
                        nn.Linear(hidden, self.stream.outputs),
                    ),
                }
            )
        for module in model.modules():
            if isinstance(module, nn.Linear):
                nn.init.zeros_(module.bias)
        return model

    def logits(self, x: Tensor, task: Task) -> Tensor:
        """Run the task's input layer, then the shared ones."""
        assert isinstance(self.model, nn.ModuleDict)
        private, shared = self.model["private"], self.model["shared"]
        assert isinstance(private, nn.ModuleList)
        out: Tensor = shared(private[task.index](x.flatten(1)).relu())
        return out

    def observe(self, task: Task, *batch: Tensor) -> Step:
        """Train the private and the shared layers."""
        x, y = batch
        logits = self.logits(x, task) + self.mask(task)
        return self.descend(nn.functional.cross_entropy(logits, y))

    def predict(self, x: Tensor, task: Task | None) -> Tensor:
        """Predict through the task's input layer."""
        assert task is not None
        best = self.logits(x, task)[:, task.outputs].argmax(1)
        return best + int(task.outputs.start)
