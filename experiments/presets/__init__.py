"""Named configurations, `benchmark/entry`: one TOML file a benchmark over one of all methods."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import cache
from importlib import resources
from types import MappingProxyType
from typing import Any

from gradproj.experiments.config import RunConfig, merge, resolve
from gradproj.experiments.schema import ConfigError, nearest

__all__ = ["available", "find"]

# A benchmark's file names the table of methods that it is laid over, "methods" unless it does.
COMMON = ("methods", "class-methods")


@cache
def available() -> Mapping[str, Mapping[str, Any]]:
    """Map the name of each preset to its values, not yet checked.

    Examples
    --------
    >>> available()["mnist-permutations/single-3ep"]["epochs"]
    3
    """
    files = {f.name: f for f in resources.files(__package__).iterdir() if f.name.endswith(".toml")}
    tables = {
        name.removesuffix(".toml"): tomllib.loads(file.read_text(encoding="utf-8"))
        for name, file in files.items()
    }
    common = {name: tables.pop(name) for name in COMMON}
    found: dict[str, dict[str, Any]] = {}
    for benchmark, own in sorted(tables.items()):
        table = merge(common[own.pop("common", "methods")], own)
        found |= _entries(table.pop("benchmark", benchmark), benchmark, table)
    return MappingProxyType(found)


def find(name: str, changes: Mapping[str, Any] = MappingProxyType({})) -> RunConfig:
    """Resolve the preset `name` with `changes` laid over it.

    Examples
    --------
    >>> find("permuted-digits/gem", {"seed": 3}).seed
    3
    >>> find("permuted-digits/gme")
    Traceback (most recent call last):
        ...
    gradproj.experiments.schema.ConfigError: preset 'permuted-digits/gme' is not known; did you
    mean 'permuted-digits/gem'?
    """
    if name not in available():
        raise ConfigError(nearest(name, available(), "preset"))
    return resolve(merge(available()[name], {"preset": name, **changes}))


def _entries(benchmark: str, name: str, table: dict[str, Any]) -> dict[str, dict[str, Any]]:
    methods = table.pop("methods")
    variants = table.pop("variants", {})
    for left_out in table.pop("without", []):
        del methods[left_out]
    found = {}
    for entry, values in methods.items():
        preset = merge({**table, "benchmark": benchmark, "method": entry}, values)
        found[f"{name}/{entry}"] = preset
        for variant, changes in variants.items():
            if entry in changes["of"]:
                changes_alone = {key: v for key, v in changes.items() if key != "of"}
                found[f"{name}/{entry}-{variant}"] = merge(preset, changes_alone)
    return found
