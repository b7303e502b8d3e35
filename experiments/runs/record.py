"""Measurements of a run so far, and the result that is made of them."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from gradproj.experiments.methods.learner import Learner
from gradproj.experiments.runs.evaluation import (
    confusion,
    evaluate,
    seen_accuracy,
    summarise,
    task_accuracies,
)
from gradproj.experiments.streams import Stream, Task

__all__ = ["Record", "guessed_classes"]

# A loss within this share of that of guessing counts as equal to it.
ROUNDING = 1e-3


@dataclass
class Record:
    """Accuracies after each task, and seconds; plain values, as a checkpoint keeps them.

    Attributes
    ----------
    baseline : list
        Accuracy on each task before any training.
    matrix, averaged : list of lists
        Accuracy on each task (column) after each task (row); `averaged` with averaged weights.
    confusion : list
        For class-incremental streams: counts of test samples by true and predicted class.
    at_chance : list of int
        Indices of tasks that were trained without learning anything; see `note_if_at_chance`.
    train_seconds, evaluation_seconds : float
    """

    baseline: list[float] = field(default_factory=list)
    matrix: list[list[float]] = field(default_factory=list)
    averaged: list[list[float]] = field(default_factory=list)
    confusion: list[list[list[int]]] = field(default_factory=list)
    at_chance: list[int] = field(default_factory=list)
    train_seconds: float = 0.0
    evaluation_seconds: float = 0.0

    def measure_baseline(self, learner: Learner, stream: Stream, device: torch.device) -> None:
        """Evaluate the untrained network."""
        with self._timed():
            self.baseline = evaluate(learner, stream, device)

    def measure(
        self, learner: Learner, stream: Stream, device: torch.device, average: nn.Module | None
    ) -> None:
        """Evaluate after a task, with averaged weights too if there are any."""
        with self._timed():
            if not learner.ready():
                self.matrix.append([math.nan] * len(stream.tasks))
            elif stream.scenario == "class":
                self.confusion.append(confusion(learner, stream, device))
                self.matrix.append(task_accuracies(self.confusion[-1], stream))
            else:
                self.matrix.append(evaluate(learner, stream, device))
            if average is not None:
                model, learner.model = learner.model, average
                self.averaged.append(evaluate(learner, stream, device))
                learner.model = model

    def note_if_at_chance(self, task: Task, loss: float, classes: int) -> bool:
        """Record and return whether a task just evaluated was not learned.

        That is so if its mean training loss is at least that of guessing, log(classes), and its
        test accuracy is at most two standard errors above 1/classes. The loss alone is not
        sufficient, because methods may add other terms to it.
        """
        chance, samples = 1 / classes, len(task.testing)
        highest = chance + 2 * math.sqrt(chance * (1 - chance) / samples)
        accuracy = self.matrix[-1][task.index]
        # One class cannot be confused with another.
        stuck = classes > 1 and loss >= (1 - ROUNDING) * math.log(classes) and accuracy <= highest
        if stuck:
            self.at_chance.append(task.index)
        return stuck

    def accuracy(self, task: int) -> float:
        """Mean accuracy on all tasks up to this one, as measured last."""
        row = self.matrix[-1][: task + 1]
        return sum(row) / len(row)

    def result(self, stream: Stream) -> dict[str, Any]:
        """Return the measurements as `result.json` stores them."""
        sizes = [len(task.testing) for task in stream.tasks]
        result: dict[str, Any] = {
            "accuracy_matrix": _jsonable(self.matrix),
            "baseline": self.baseline,
            "at_chance": self.at_chance,
            "metrics": summarise(self.matrix, self.baseline, sizes),
            "train_seconds": round(self.train_seconds, 3),
            "evaluation_seconds": round(self.evaluation_seconds, 3),
        }
        if self.averaged:
            result["averaged_accuracy_matrix"] = _jsonable(self.averaged)
            result["averaged_metrics"] = summarise(self.averaged, self.baseline, sizes)
        if self.confusion:
            # One entry per task: accuracy on all classes seen so far, and the confusion matrix.
            result["seen_accuracy"] = [seen_accuracy(counts) for counts in self.confusion]
            result["confusion"] = self.confusion
        return result

    @contextmanager
    def _timed(self) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self.evaluation_seconds += time.perf_counter() - start


def guessed_classes(task: Task, scenario: str) -> int:
    """Return the number of classes that compete when the task has just been learned."""
    outputs = task.outputs
    return int(outputs.stop - (0 if scenario == "class" else outputs.start))


def _jsonable(matrix: list[list[float]]) -> list[list[float | None]]:
    return [[None if math.isnan(value) else value for value in row] for row in matrix]
