"""The 1797 handwritten digits that scikit-learn ships: no download, 8×8 pixels, 17 grey levels."""

import numpy as np
import torch

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
    from sklearn.datasets import load_digits as sklearn_digits

    bunch = sklearn_digits()
    images = torch.from_numpy(bunch.images.astype(np.uint8)).unsqueeze(1)
    labels = torch.from_numpy(bunch.target.astype(np.int64))
    generator = np.random.default_rng(_SPLIT_SEED)
    test = np.zeros(len(labels), dtype=bool)
    for label in range(10):
        members = np.flatnonzero(bunch.target == label)
        test[generator.permutation(members)[: len(members) // _TEST_SHARE]] = True
    mask = torch.from_numpy(test)
    return Dataset(
        "digits", images[~mask], labels[~mask], images[mask], labels[mask], classes=10, scale=16.0
    )
