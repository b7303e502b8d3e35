"""Continual-learning metrics: pure functions of the accuracy matrix.

R[i, j] is the test accuracy on task j after training on task i, as a fraction; T tasks give a
T×T matrix. b[j] is the accuracy on task j before any training.
"""

from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = [
    "average_accuracy",
    "average_incremental_accuracy",
    "backward_transfer",
    "forgetting",
    "forward_transfer",
    "learning_accuracy",
]

Divisor = Literal["pairs", "tasks"]


def average_accuracy(R: ArrayLike) -> float:
    """ACC: mean accuracy over all tasks after the last one, mean_j R[T−1, j].

    Examples
    --------
    >>> average_accuracy([[0.9, 0.1], [0.6, 0.8]])
    0.7
    """
    return float(_matrix(R)[-1].mean())


def backward_transfer(R: ArrayLike, divisor: Divisor = "pairs") -> float:
    """BWT: effect of later tasks on earlier ones, Σ_{j<T−1} (R[T−1, j] − R[j, j]) / divisor.

    Parameters
    ----------
    R : array, shape (T, T)
    divisor : "pairs" or "tasks"
        "pairs" divides by T − 1, as the GEM paper defines it; "tasks" by T, as its released
        metrics do (the last task counts as a zero). With a single task the value is 0.

    Examples
    --------
    >>> R = [[0.9, 0.1], [0.6, 0.8]]
    >>> round(backward_transfer(R, "pairs"), 12), round(backward_transfer(R, "tasks"), 12)
    (-0.3, -0.15)
    """
    R = _matrix(R)
    return _over(R[-1, :-1] - R.diagonal()[:-1], divisor)


def forward_transfer(R: ArrayLike, b: ArrayLike, divisor: Divisor = "pairs") -> float:
    """FWT: effect of earlier tasks on later ones, Σ_{j≥1} (R[j−1, j] − b[j]) / divisor.

    Parameters
    ----------
    R : array, shape (T, T)
    b : array, shape (T,)
        Accuracies of the untrained network.
    divisor : "pairs" or "tasks"
        As for `backward_transfer`.

    Examples
    --------
    >>> round(forward_transfer([[0.9, 0.3], [0.6, 0.8]], b=[0.1, 0.1]), 12)
    0.2
    """
    R = _matrix(R)
    before = np.asarray(b, dtype=np.float64)
    if before.shape != (len(R),):
        raise ValueError(
            f"b has shape {before.shape}; expected one accuracy for each of {len(R)} tasks"
        )
    return _over(R.diagonal(offset=1) - before[1:], divisor)


def forgetting(R: ArrayLike) -> float:
    """Mean drop from a task's best accuracy so far, 1/(T−1) Σ_j (max_{i<T−1} R[i, j] − R[T−1, j]).

    As in A-GEM; with a single task the value is 0.

    Examples
    --------
    >>> round(forgetting([[0.9, 0.1, 0.1], [0.95, 0.7, 0.1], [0.5, 0.6, 0.8]]), 12)
    0.275
    """
    R = _matrix(R)
    if len(R) == 1:
        return 0.0
    return float((R[:-1, :-1].max(axis=0) - R[-1, :-1]).mean())


def learning_accuracy(R: ArrayLike) -> float:
    """Mean accuracy on each task just after learning it, mean_j R[j, j].

    Examples
    --------
    >>> round(learning_accuracy([[0.9, 0.1], [0.6, 0.8]]), 12)
    0.85
    """
    return float(_matrix(R).diagonal().mean())


def average_incremental_accuracy(
    R: ArrayLike, sizes: ArrayLike | None = None, first: bool = True
) -> float:
    """Mean over tasks of the accuracy on all tasks seen by then.

    Parameters
    ----------
    R : array, shape (T, T)
        In a class-incremental run: accuracies with all seen outputs competing.
    sizes : array, shape (T,), optional
        Number of test images per task, used as weights; equal weights by default.
    first : bool
        Whether the first step counts: iCaRL and LUCIR keep it, GD leaves it out.

    Examples
    --------
    >>> R = [[0.9, 0.0], [0.6, 0.8]]
    >>> round(average_incremental_accuracy(R), 12)
    0.8
    >>> round(average_incremental_accuracy(R, first=False), 12)
    0.7
    """
    R = _matrix(R)
    weights = np.ones(len(R)) if sizes is None else np.asarray(sizes, dtype=np.float64)
    if weights.shape != (len(R),) or not (weights > 0).all():
        raise ValueError(f"sizes must be {len(R)} positive numbers, one for each task")
    if not first and len(R) == 1:
        raise ValueError("first=False leaves no step of a stream of one task; use first=True")
    steps = [np.average(R[i, : i + 1], weights=weights[: i + 1]) for i in range(len(R))]
    return float(np.mean(steps if first else steps[1:]))


def _matrix(R: ArrayLike) -> NDArray[np.float64]:
    matrix = np.asarray(R, dtype=np.float64)
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or not len(matrix):
        raise ValueError(f"R has shape {matrix.shape}; give a square matrix, one row for each task")
    if not ((matrix >= 0) & (matrix <= 1)).all():
        raise ValueError("R must hold accuracies as fractions in [0, 1]; divide percentages by 100")
    return matrix


def _over(changes: NDArray[np.float64], divisor: Divisor) -> float:
    if divisor not in ("pairs", "tasks"):
        raise ValueError(f"divisor={divisor!r} is not known; use 'pairs' (T − 1) or 'tasks' (T)")
    count = len(changes) + (divisor == "tasks")
    return float(changes.sum() / count) if len(changes) else 0.0
