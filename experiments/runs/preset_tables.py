"""The values of all presets, read from TOML files.

The file of a benchmark is merged into a file with the values of all methods. This module does not
import torch, so that `gradproj list` is quick.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import cache
from importlib import resources
from types import MappingProxyType
from typing import Any

from gradproj.experiments.common.tables import merge

__all__ = ["available", "canonical", "shared"]

# The tables of methods. The file of a benchmark names the one that it is merged into as `common`;
# the default is "methods".
COMMON = ("methods", "class-methods")
# The keys of a file that are not values of its presets.
SPECIAL = ("aliases", "common", "methods", "variants", "without", "only")


@cache
def available() -> Mapping[str, Mapping[str, Any]]:
    """Map the name of each preset to its values, not yet checked.

    Examples
    --------
    >>> available()["mnist-permutations/single-3ep"]["epochs"]
    3
    """
    found: dict[str, dict[str, Any]] = {}
    for name, table in _tables().items():
        found |= _entries(name, table)
    return MappingProxyType(found)


def canonical(name: str) -> str:
    """Return the name of the preset that `name` is an alias of, or `name` itself.

    Examples
    --------
    >>> canonical("mnist-permutations/d-printed"), canonical("permuted-digits/gem")
    ('mnist-permutations/full-printed', 'permuted-digits/gem')
    """
    if name in available():
        return name
    benchmark, _, entry = name.partition("/")
    for alias, meant in _tables().get(benchmark, {}).get("aliases", {}).items():
        if entry == alias or entry.startswith(f"{alias}-"):
            found = f"{benchmark}/{meant}{entry.removeprefix(alias)}"
            if found in available():
                return found
    return name


def shared(benchmark: str) -> dict[str, Any]:
    """Return the values that all presets of a benchmark share; {} if it has no presets.

    Examples
    --------
    >>> shared("permuted-digits")["memory"]["per_task"]
    100
    """
    table = _tables().get(benchmark, {})
    return {key: value for key, value in table.items() if key not in SPECIAL}


@cache
def _tables() -> Mapping[str, Mapping[str, Any]]:
    """Read all files, each merged into the table of methods that it names."""
    files = [
        f for f in (resources.files(__package__) / "presets").iterdir() if f.name.endswith(".toml")
    ]
    tables = {
        file.name.removesuffix(".toml"): tomllib.loads(file.read_text(encoding="utf-8"))
        for file in files
    }
    common = {name: tables.pop(name) for name in COMMON}
    return {
        name: merge({"benchmark": name, **common[own.get("common", "methods")]}, own)
        for name, own in sorted(tables.items())
    }


def _entries(name: str, table: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    start = {key: value for key, value in table.items() if key not in SPECIAL}
    variants = table.get("variants", {})
    found = {}
    for entry, values in table["methods"].items():
        if entry in table.get("without", ()) or entry not in table.get("only", [entry]):
            continue
        preset = merge({**start, "method": entry}, values)
        found[f"{name}/{entry}"] = preset
        for variant, changes in variants.items():
            if entry in changes["of"]:
                changes_alone = {key: v for key, v in changes.items() if key != "of"}
                found[f"{name}/{entry}-{variant}"] = merge(preset, changes_alone)
    return found
