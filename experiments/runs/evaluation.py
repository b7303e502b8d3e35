"""Test accuracy of a learner on every task of a stream, and which classes it confuses."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from gradproj.experiments.common.errors import RunError
from gradproj.experiments.methods.learner import BATCH, Learner
from gradproj.experiments.runs import metrics
from gradproj.experiments.streams import Stream, Task

__all__ = ["confusion", "evaluate", "seen_accuracy", "summarise", "task_accuracies"]

Counts = list[list[int]]


@torch.no_grad()
def evaluate(
    learner: Learner, stream: Stream, device: torch.device | None = None, batch: int = BATCH
) -> list[float]:
    """Return the share of test samples of each task that `learner` classifies correctly.

    The network is in evaluation mode. The task is passed to `predict` only in scenarios that know
    it at test time. In a class-incremental stream, a task that has not been trained yet scores 0,
    because its outputs do not compete.
    """
    if stream.scenario == "class":
        return task_accuracies(confusion(learner, stream, device, batch), stream)
    was_training = learner.model.training
    learner.model.eval()
    accuracies = []
    for task in stream.tasks:
        y, named = _predict(learner, task, task, device, batch)
        accuracies.append(int((named == y).sum()) / len(y))
    learner.model.train(was_training)
    return accuracies


@torch.no_grad()
def confusion(
    learner: Learner, stream: Stream, device: torch.device | None = None, batch: int = BATCH
) -> Counts:
    """Count the test samples of each class seen so far (rows) by predicted class (columns)."""
    seen = learner.seen()
    was_training = learner.model.training
    learner.model.eval()
    counts = torch.zeros(seen * seen, dtype=torch.int64)
    for task in stream.tasks:
        if task.outputs.stop <= seen:
            y, named = _predict(learner, task, None, device, batch)
            low, high = int(named.min()), int(named.max())
            if low < 0 or high >= seen:
                # Otherwise it would be counted in the row of another class.
                raise RunError(
                    f"predict of method '{learner.config.method}' named outputs {low} to {high}; "
                    f"choose among those seen, 0 to {seen - 1}"
                )
            counts += torch.bincount(y * seen + named, minlength=seen * seen)
    learner.model.train(was_training)
    rows: Counts = counts.view(seen, seen).tolist()
    return rows


def task_accuracies(counts: Counts, stream: Stream) -> list[float]:
    """Return the accuracy on each task of a class-incremental stream; 0 for tasks not seen."""
    accuracies = []
    for task in stream.tasks:
        rows = range(task.outputs.start, min(task.outputs.stop, len(counts)))
        total = sum(sum(counts[row]) for row in rows)
        accuracies.append(sum(counts[row][row] for row in rows) / total if total else 0.0)
    return accuracies


def seen_accuracy(counts: Counts) -> float:
    """Return the accuracy on all test samples of the classes seen.

    Examples
    --------
    >>> seen_accuracy([[3, 1], [0, 4]])
    0.875
    """
    return sum(row[i] for i, row in enumerate(counts)) / sum(map(sum, counts))


def summarise(
    matrix: list[list[float]], baseline: list[float], sizes: Sequence[int] | None = None
) -> dict[str, float]:
    """Return all metrics of an accuracy matrix, or only ACC if some rows were not measured.

    `sizes` is the number of test samples per task. They weight the tasks in the average
    incremental accuracy.
    """
    if any(math.isnan(value) for row in matrix for value in row):
        return {"acc": sum(matrix[-1]) / len(matrix[-1])}
    found = {
        "acc": metrics.average_accuracy(matrix),
        "bwt_pairs": metrics.backward_transfer(matrix, "pairs"),
        "bwt_tasks": metrics.backward_transfer(matrix, "tasks"),
        "fwt_pairs": metrics.forward_transfer(matrix, baseline, "pairs"),
        "forgetting": metrics.forgetting(matrix),
        "learning_accuracy": metrics.learning_accuracy(matrix),
        "average_incremental_accuracy": metrics.average_incremental_accuracy(matrix, sizes),
    }
    if len(matrix) > 1:
        found["average_incremental_accuracy_without_first"] = metrics.average_incremental_accuracy(
            matrix, sizes, first=False
        )
    return found


def _predict(
    learner: Learner, task: Task, known: Task | None, device: torch.device | None, batch: int
) -> tuple[torch.Tensor, torch.Tensor]:
    labels, named = [], []
    for x, y in task.testing.batches(batch):
        labels.append(y)
        named.append(learner.predict(x.to(device), known).to(y.device))
        if named[-1].shape != y.shape:
            raise RunError(
                f"predict of method '{learner.config.method}' returned shape "
                f"{tuple(named[-1].shape)} for {len(y)} images; return one class index per image"
            )
    return torch.cat(labels), torch.cat(named)
