"""The order of classes in streams that split them."""

from collections.abc import Sequence

import numpy as np

__all__ = ["class_order"]

# The order published with iCaRL for CIFAR-100, used by many systems since.
_ICARL = (
    87, 0, 52, 58, 44, 91, 68, 97, 51, 15, 94, 92, 10, 72, 49, 78, 61, 14, 8, 86, 84, 96, 18, 24,
    32, 45, 88, 11, 4, 67, 69, 66, 77, 47, 79, 93, 29, 50, 57, 83, 17, 81, 41, 12, 37, 59, 25, 20,
    80, 73, 1, 28, 6, 46, 62, 82, 53, 9, 31, 75, 38, 63, 33, 74, 27, 22, 36, 3, 16, 21, 60, 19, 70,
    90, 89, 43, 5, 42, 65, 76, 40, 30, 23, 85, 2, 95, 56, 48, 71, 64, 98, 13, 99, 7, 34, 55, 54,
    26, 35, 39,
)  # fmt: skip


def class_order(order: str | Sequence[int], classes: int, seed: int = 0) -> tuple[int, ...]:
    """Resolve a class order to a permutation of range(classes).

    Parameters
    ----------
    order : str or sequence of int
        "natural": 0, 1, 2, …; "seeded": drawn from `seed`; "numpy-1993": NumPy's legacy generator
        with seed 1993, then shuffle (LUCIR, PyCIL, FACIL); "icarl": the list published with iCaRL
        for CIFAR-100; or the labels themselves.
    classes : int
        Number of classes.
    seed : int
        Used only by "seeded".

    Examples
    --------
    >>> class_order("numpy-1993", 100)[:4]
    (68, 56, 78, 8)
    >>> class_order("icarl", 100)[:4]
    (87, 0, 52, 58)
    >>> class_order([2, 0, 1], 3)
    (2, 0, 1)
    """
    if isinstance(order, str):
        return _named(order, classes, seed)
    if not isinstance(order, Sequence):
        raise ValueError(f"class_order={order!r} must be a name or a list of labels")
    labels = tuple(int(label) for label in order)
    if sorted(labels) != list(range(classes)):
        raise ValueError(
            f"class_order must hold each label 0 to {classes - 1} exactly once; "
            f"found {len(labels)} labels, {len(set(labels) & set(range(classes)))} of them valid"
        )
    return labels


def _named(order: str, classes: int, seed: int) -> tuple[int, ...]:
    if order == "natural":
        return tuple(range(classes))
    if order == "seeded":
        return tuple(np.random.default_rng([seed, classes]).permutation(classes).tolist())
    if order == "numpy-1993":
        labels = np.arange(classes)
        # The legacy generator is the published definition, and NumPy keeps its stream frozen.
        np.random.RandomState(1993).shuffle(labels)
        return tuple(labels.tolist())
    if order == "icarl":
        if classes != len(_ICARL):
            raise ValueError(
                f"class_order='icarl' orders 100 classes; this data set has {classes}: "
                "use 'natural', 'seeded' or 'numpy-1993'"
            )
        return _ICARL
    raise ValueError(
        f"class_order={order!r} is not known; use 'natural', 'seeded', 'numpy-1993', 'icarl' "
        "or a list of labels"
    )
