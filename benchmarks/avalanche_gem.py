"""GEM as Avalanche's plugin computes it, called step by step for comparison."""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Callable
from types import SimpleNamespace

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

MISSING = "Avalanche GEM: avalanche-lib is not installed (`make bench` installs it)"


def installed() -> bool:
    """Return whether avalanche-lib is installed."""
    return importlib.util.find_spec("avalanche") is not None


class GEM:
    """The plugin, with the attributes of a strategy that it reads."""

    def __init__(self, model: nn.Module, loss: Callable[..., Tensor]) -> None:
        from gradproj.experiments.common.torchvision import import_torchvision

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            # Avalanche imports torchvision, which needs this shim with a CPU build of torch.
            import_torchvision()
            from avalanche.training.plugins import GEMPlugin
        self.loss = loss
        self.plugin = GEMPlugin(patterns_per_experience=256, memory_strength=0.5)
        self.strategy = SimpleNamespace(
            model=model,
            optimizer=torch.optim.SGD(model.parameters(), 0.1),
            device=torch.device("cpu"),
            clock=SimpleNamespace(train_exp_counter=0),
            _criterion=cross_entropy,
        )

    def remember(self, x: Tensor, y: Tensor) -> None:
        """End a task and keep these samples as its memory."""
        task = self.strategy.clock.train_exp_counter
        self.plugin.memory_x[task], self.plugin.memory_y[task] = x, y
        self.plugin.memory_tid[task] = torch.zeros(len(x), dtype=torch.long)
        self.strategy.clock.train_exp_counter += 1

    def backward(self, batch: tuple[Tensor, ...]) -> None:
        """Leave the projected gradient in `.grad`."""
        self.plugin.before_training_iteration(self.strategy)
        self.strategy.optimizer.zero_grad()
        self.loss(self.strategy.model, *batch).backward()  # type: ignore[no-untyped-call]
        self.plugin.after_backward(self.strategy)

    def step(self, batch: tuple[Tensor, ...]) -> None:
        """Make one training step."""
        self.backward(batch)
        self.strategy.optimizer.step()
