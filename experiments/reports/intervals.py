"""Confidence intervals of a mean over seeds."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.special import stdtrit

__all__ = ["LEVEL", "interval"]

# The confidence level of every interval in a report.
LEVEL = 0.95


def interval(values: Sequence[float]) -> tuple[float, float] | None:
    """Return the 95 % confidence interval of the mean (Student's t), or None for fewer than two.

    For differences that were taken seed by seed, this is the interval of the paired t-test.

    Examples
    --------
    >>> low, high = interval([1.0, 2.0, 3.0])
    >>> round(low, 2), round(high, 2)
    (-0.48, 4.48)
    >>> print(interval([1.0]))
    None
    """
    count = len(values)
    if count < 2:
        return None
    mean = float(np.mean(values))
    error = float(np.std(values, ddof=1)) / count**0.5
    half = float(stdtrit(count - 1, (1 + LEVEL) / 2)) * error
    return mean - half, mean + half
