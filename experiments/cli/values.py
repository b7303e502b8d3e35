"""The values that `gradproj list` shows; apart from it, because they take seconds to import."""

from __future__ import annotations

from typing import Any

from gradproj.experiments import methods
from gradproj.experiments.common.schema import to_plain
from gradproj.experiments.runs import presets

__all__ = ["defaults", "values"]


def defaults(method: str) -> dict[str, Any]:
    """Return the options of a method with their defaults.

    Examples
    --------
    >>> defaults("tinyer")["batch"]
    10
    """
    plain: dict[str, Any] = to_plain(methods.find(method).Options())
    return plain


def values(preset: str) -> dict[str, Any]:
    """Return every value of a preset.

    Examples
    --------
    >>> values("permuted-digits/ours")["options"]["rank"]
    5
    """
    plain: dict[str, Any] = to_plain(presets.find(preset))
    return plain
