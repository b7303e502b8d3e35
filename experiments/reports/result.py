"""The result of one run, for use in Python."""

from __future__ import annotations

import importlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gradproj.experiments.methods.config import RunConfig
from gradproj.experiments.reports.figures import style
from gradproj.experiments.reports.figures.demo import draw_accuracies
from gradproj.experiments.runs.folder import RunFolder

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Result", "read_result"]


@dataclass(frozen=True)
class Result:
    """The result of a run, as `gradproj.experiments.run` returns it.

    Attributes
    ----------
    config : RunConfig
        The complete configuration, defaults included.
    accuracy_matrix : array, shape (T, T)
        Test accuracy on task j (column) after training on task i (row), as a fraction. NaN where
        it was not measured.
    metrics : dict
        "acc", "bwt_pairs", "forgetting", … as fractions; `gradproj.experiments.runs.metrics`
        defines them.
    stored_per_task : float or None
        Training samples that the method stores, per task; None for a run of an early version,
        which did not count them.
    train_seconds, evaluation_seconds : float
    folder : Path or None
        The run folder, or None if it was temporary.
    """

    config: RunConfig
    accuracy_matrix: NDArray[np.float64] = field(repr=False)
    metrics: dict[str, float]
    stored_per_task: float | None
    train_seconds: float
    evaluation_seconds: float
    folder: Path | None = None

    def __repr__(self) -> str:
        name = self.config.preset or f"{self.config.benchmark}/{self.config.method}"
        parts = [f"ACC {100 * self.metrics['acc']:.1f} %"]
        if "bwt_pairs" in self.metrics:
            parts.append(f"BWT ÷ (T−1) {100 * self.metrics['bwt_pairs']:+.1f}")
        return f"<Result of {name}, seed {self.config.seed}: {', '.join(parts)}>"

    def to_dataframe(self) -> Any:
        """Return the accuracies as a pandas DataFrame with one row per evaluated task.

        Its columns are "learned" (number of tasks learned so far), "task" (from 1) and "accuracy".
        """
        try:
            pandas = importlib.import_module("pandas")
        except ModuleNotFoundError:
            raise ImportError("to_dataframe needs pandas; run pip install pandas") from None
        R = self.accuracy_matrix
        learned, task = np.indices(R.shape) + 1
        columns = {"learned": learned.ravel(), "task": task.ravel(), "accuracy": R.ravel()}
        return pandas.DataFrame(columns)

    def plot(self, path: str | Path | None = None) -> Figure:
        """Draw the accuracy of each task since it was learned, and their mean.

        Parameters
        ----------
        path : path, optional
            Also save the figure here; the suffix chooses the format.
        """
        with style.styled():
            figure = style.figure(4.8, 3.6)
            panel = figure.subplots()
            draw_accuracies(panel, self.accuracy_matrix)
            panel.set_title(repr(self)[len("<Result of ") : -1])
            panel.set(xlabel="tasks learned", ylabel="test accuracy")
            panel.legend(loc="lower left")
            if path is not None:
                figure.savefig(path, dpi=150)
        return figure


def read_result(config: RunConfig, folder: Path, *, kept: bool) -> Result:
    """Read the result of a finished run from its folder; `kept` says whether the folder stays."""
    found = RunFolder(folder).read_result()
    return Result(
        config=config,
        accuracy_matrix=np.array(found["accuracy_matrix"], dtype=np.float64),
        metrics=found["metrics"],
        stored_per_task=found["stored_per_task"],
        train_seconds=found["train_seconds"],
        evaluation_seconds=found["evaluation_seconds"],
        folder=folder if kept else None,
    )
