"""The 1797 handwritten digits that scikit-learn ships: no download, 8×8 pixels, 17 grey levels."""

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from gradproj.experiments.data.dataset import Dataset

__all__ = ["load_digits"]

_SPLIT_SEED = 0
_TEST_SHARE = 5


def load_digits() -> Dataset:
    """Load the digits with a fixed split: of every class, one image in five is a test image.

    The images come without a split of their own, so ours is stratified and drawn from one fixed
    seed; it never changes with the seed of a run.

    Examples
    --------
    >>> digits = load_digits()
    >>> len(digits.train_x), len(digits.test_x), digits.shape, digits.scale
    (1442, 355, (1, 8, 8), 16.0)
    """
    pixels, target = _read()
    images = torch.from_numpy(pixels.reshape(-1, 1, 8, 8).astype(np.uint8))
    labels = torch.from_numpy(target.astype(np.int64))
    generator = np.random.default_rng(_SPLIT_SEED)
    test = np.zeros(len(labels), dtype=bool)
    for label in range(10):
        members = np.flatnonzero(target == label)
        test[generator.permutation(members)[: len(members) // _TEST_SHARE]] = True
    mask = torch.from_numpy(test)
    return Dataset(
        "digits", images[~mask], labels[~mask], images[mask], labels[mask], classes=10, scale=16.0
    )


def _read() -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return pixels and labels from scikit-learn's file.

    Importing scikit-learn takes 0.9 s of CPU time, which each process of a grid would spend. It is
    imported only if a later version keeps the file elsewhere.
    """
    package = find_spec("sklearn")
    if package is not None and package.origin is not None:
        file = Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz"
        if file.is_file():
            table = np.loadtxt(file, delimiter=",")
            return table[:, :-1], table[:, -1]
    from sklearn.datasets import load_digits as sklearn_digits

    return sklearn_digits(return_X_y=True)  # type: ignore[no-any-return]
