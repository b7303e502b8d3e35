"""Image data sets by name, from the user's data folder or embedded."""

from pathlib import Path

from gradproj.experiments.data.dataset import Dataset
from gradproj.experiments.data.digits import load_digits

__all__ = ["Dataset", "load"]


def load(name: str, root: str | Path | None = None) -> Dataset:  # noqa: ARG001
    """Load a data set by name."""
    if name == "digits":
        return load_digits()
    raise ValueError(f"dataset={name!r} is not known; use 'digits'")
