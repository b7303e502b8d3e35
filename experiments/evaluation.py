"""Test accuracy of a learner on every task of a stream."""

from __future__ import annotations

import math

import torch

from gradproj.experiments import metrics
from gradproj.experiments.learner import Learner
from gradproj.experiments.streams import Stream

__all__ = ["evaluate", "summarise"]


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


def summarise(matrix: list[list[float]], baseline: list[float]) -> dict[str, float]:
    """Return all metrics of an accuracy matrix; of one with unmeasured rows, ACC alone."""
    if any(math.isnan(value) for row in matrix for value in row):
        return {"acc": sum(matrix[-1]) / len(matrix[-1])}
    return {
        "acc": metrics.average_accuracy(matrix),
        "bwt_pairs": metrics.backward_transfer(matrix, "pairs"),
        "bwt_tasks": metrics.backward_transfer(matrix, "tasks"),
        "fwt_pairs": metrics.forward_transfer(matrix, baseline, "pairs"),
        "forgetting": metrics.forgetting(matrix),
        "learning_accuracy": metrics.learning_accuracy(matrix),
        "average_incremental_accuracy": metrics.average_incremental_accuracy(matrix),
    }
