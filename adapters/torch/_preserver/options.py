"""Checks of the numbers that a preserver takes, which return them in one form."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any, TypeGuard


def checked_strength(strength: Any) -> float:
    """Return λ; raise unless it is a number >= 0 or infinity."""
    if not _is_number(strength) or not strength >= 0:  # also for NaN
        raise ValueError(f"strength={strength!r} is invalid: expected a number >= 0 or math.inf")
    return float(strength)


def checked_rank(rank: Any) -> int | None:
    """Return the number of directions; raise unless it is an integer >= 1 or None."""
    if rank is not None and (isinstance(rank, bool) or not isinstance(rank, int) or rank < 1):
        raise ValueError(f"rank={rank!r} is invalid: expected an integer >= 1 or None")
    return rank


def shares_by_layer(share: Any, names: Sequence[str]) -> dict[str, float]:
    """Return one share per layer, from one number or a mapping; raise for other values."""
    given = share if isinstance(share, Mapping) else dict.fromkeys(names, share)
    if set(given) != set(names):
        wrong = sorted(set(given) ^ set(names))
        raise ValueError(
            f"share has other names than the protected layers ({wrong}); give one share for each "
            f"of {list(names)}"
        )
    for value in given.values():
        if not _is_number(value) or not 0 <= value <= 1:
            raise ValueError(f"share={value!r} is invalid: expected a number in [0, 1]")
    return {name: float(value) for name, value in given.items()}


def checked_importance(importance: Any, *, hard: bool) -> float | None:
    """Return α of SGP; raise unless it is a finite number >= 0 and there is a share."""
    if importance is None:
        return None
    if not hard:
        raise ValueError(f"importance={importance!r} needs a share: it weights the hard projection")
    if not _is_number(importance) or not 0 <= importance < math.inf:
        raise ValueError(f"importance={importance!r} is invalid: expected a finite number >= 0")
    return float(importance)


def _is_number(given: Any) -> TypeGuard[float]:
    """Return whether it is a real number of Python or NumPy, such as ``np.float32``."""
    return isinstance(given, Real)
