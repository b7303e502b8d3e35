"""Nested tables of values, as TOML and JSON files hold them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["merge"]


def merge(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return `base` with the values of `changes`; nested tables are merged key by key.

    Examples
    --------
    >>> merge({"memory": {"batch": 20}}, {"memory": {"per_task": 5}})
    {'memory': {'batch': 20, 'per_task': 5}}
    """
    out = dict(base)
    for key, value in changes.items():
        old = out.get(key)
        both = isinstance(value, Mapping) and isinstance(old, Mapping)
        out[key] = merge(old, value) if both else value  # type: ignore[arg-type]
    return out
