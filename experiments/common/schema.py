"""Checked conversion from plain mappings to dataclasses, with errors that say how to fix them."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping
from typing import Any, TypeVar

from gradproj.experiments.common.errors import ConfigError
from gradproj.experiments.common.registry import nearest

__all__ = ["check", "ranged", "to_plain"]

D = TypeVar("D")


def ranged(
    default: Any = dataclasses.MISSING, *, low: Any = None, high: Any = None, below: Any = None
) -> Any:
    """Make a dataclass field whose number must lie in [low, high], or in [low, below)."""
    limits = {"low": low, "high": high, "below": below}
    if default is dataclasses.MISSING:
        return dataclasses.field(metadata=limits)
    return dataclasses.field(default=default, metadata=limits)


def check(cls: type[D], values: Mapping[str, Any], prefix: str = "") -> D:
    """Build the dataclass `cls` from `values` after checking keys, types and ranges.

    Parameters
    ----------
    cls : dataclass type
        Fields may be bool, int, float, str, Literal, unions of these, lists and tuples of them,
        mappings and other dataclasses; `ranged` fields carry limits.
    values : mapping
        Plain values, as TOML, JSON or the command line give them.
    prefix : str
        Put before each key in messages ("memory." for a nested group).

    Examples
    --------
    >>> @dataclasses.dataclass(frozen=True)
    ... class Point:
    ...     x: float = ranged(0.0, low=0)
    >>> check(Point, {"x": 1})
    Point(x=1.0)
    >>> check(Point, {"x": -1})
    Traceback (most recent call last):
        ...
    gradproj.experiments.common.errors.ConfigError: x=-1.0 is below the least allowed value 0
    """
    fields = {f.name: f for f in dataclasses.fields(cls) if f.init}  # type: ignore[arg-type]
    hints = typing.get_type_hints(cls)
    out: dict[str, Any] = {}
    for key, value in values.items():
        if key not in fields:
            full = [prefix + name for name in fields]
            raise ConfigError(nearest(prefix + str(key), full, "key"))
        out[key] = _convert(hints[key], value, prefix + key)
        _check_limits(out[key], fields[key].metadata, prefix + key)
    missing = [
        prefix + f.name
        for f in fields.values()
        if f.name not in out
        and f.default is dataclasses.MISSING
        and f.default_factory is dataclasses.MISSING
    ]
    if missing:
        raise ConfigError(f"key '{missing[0]}' is missing; give it a value")
    return cls(**out)


def to_plain(value: Any) -> Any:
    """Turn dataclasses and tuples into the dicts and lists that JSON holds."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: to_plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(k): to_plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_plain(v) for v in value]
    return value


def _convert(hint: Any, value: Any, key: str) -> Any:
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        return _convert_union(typing.get_args(hint), value, key)
    if origin is typing.Literal:
        choices = typing.get_args(hint)
        if value not in choices:
            raise ConfigError(f"{key}={value!r} is not known; use {', '.join(map(repr, choices))}")
        return value
    if origin in (list, tuple):
        return origin(_convert_items(hint, value, key))
    if origin in (dict, Mapping):
        if not isinstance(value, Mapping):
            raise ConfigError(f"{key}={value!r} must be a table of keys and values")
        return dict(value)
    if dataclasses.is_dataclass(hint):
        if not isinstance(value, Mapping):
            raise ConfigError(f"{key}={value!r} must be a table of keys and values")
        return check(typing.cast("type[Any]", hint), value, key + ".")
    return _convert_scalar(hint, value, key)


def _convert_items(hint: Any, value: Any, key: str) -> list[Any]:
    if not isinstance(value, (list, tuple)):
        raise ConfigError(f"{key}={value!r} must be a list")
    items = typing.get_args(hint)
    if typing.get_origin(hint) is list or items[-1:] == (...,):
        items = items[:1] * len(value)
    if len(value) != len(items):
        raise ConfigError(f"{key}={value!r} has {len(value)} values; it must have {len(items)}")
    return [
        _convert(item, v, f"{key}[{i}]")
        for i, (item, v) in enumerate(zip(items, value, strict=True))
    ]


def _convert_union(members: tuple[Any, ...], value: Any, key: str) -> Any:
    # An int stays an int where both int and float are allowed: try exact types first.
    for member in members:
        if isinstance(member, type) and type(value) is member:
            return value
    for member in members:
        try:
            return _convert(member, value, key)
        except ConfigError:
            continue
    names = " or ".join(_name(m) for m in members)
    raise ConfigError(f"{key}={value!r} has the wrong type; use {names}")


def _convert_scalar(hint: Any, value: Any, key: str) -> Any:
    if hint is type(None) and value is None:
        return None
    if hint is float and type(value) is int:
        return float(value)
    if isinstance(hint, type) and type(value) is hint:
        return value
    raise ConfigError(f"{key}={value!r} has the wrong type; use {_name(hint)}")


def _name(hint: Any) -> str:
    if typing.get_origin(hint) is typing.Literal:
        return " or ".join(map(repr, typing.get_args(hint)))
    return {int: "a whole number", float: "a number", str: "a string", bool: "true or false"}.get(
        hint, "nothing" if hint is type(None) else str(hint)
    )


def _check_limits(value: Any, limits: Mapping[str, Any], key: str) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return
    low, high, below = (limits.get(name) for name in ("low", "high", "below"))
    if value != value:
        raise ConfigError(f"{key}=nan is not a number; give it a value")
    if low is not None and value < low:
        raise ConfigError(f"{key}={value} is below the least allowed value {low}")
    if high is not None and value > high:
        raise ConfigError(f"{key}={value} is above the greatest allowed value {high}")
    if below is not None and value >= below:
        raise ConfigError(f"{key}={value} must be below {below}")
