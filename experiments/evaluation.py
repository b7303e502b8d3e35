"""Test accuracy of a learner on every task of a stream."""

from __future__ import annotations

import torch

from gradproj.experiments.learner import Learner
from gradproj.experiments.streams import Stream

__all__ = ["evaluate"]


@torch.no_grad()
def evaluate(
    learner: Learner, stream: Stream, device: torch.device | None = None, batch: int = 1000
) -> list[float]:
    """Return the share of test samples of each task that `learner` names correctly.

    The network is in evaluation mode, every sample counts, and the task is told only where the
    scenario says that it is known.
    """
    was_training = learner.model.training
    learner.model.eval()
    accuracies = []
    for task in stream.tasks:
        x, y = task.test()
        known = None if stream.scenario == "class" else task
        correct = 0
        for start in range(0, len(y), batch):
            piece = x[start : start + batch].to(device)
            named = learner.predict(piece, known).to(y.device)
            correct += int((named == y[start : start + batch]).sum())
        accuracies.append(correct / len(y))
    learner.model.train(was_training)
    return accuracies
