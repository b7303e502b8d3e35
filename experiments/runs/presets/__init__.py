"""Named configurations, `benchmark/entry`, resolved from the TOML files in this folder."""

from __future__ import annotations

import fnmatch
import glob
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from gradproj.experiments.common.errors import ConfigError
from gradproj.experiments.common.registry import lookup
from gradproj.experiments.common.tables import merge
from gradproj.experiments.methods.config import RunConfig
from gradproj.experiments.runs.preset_tables import available, canonical, shared
from gradproj.experiments.runs.resolve import resolve

__all__ = ["available", "canonical", "compose", "find", "match", "shared"]


def find(name: str, changes: Mapping[str, Any] = MappingProxyType({})) -> RunConfig:
    """Resolve the preset `name`, which may be an alias, with `changes` applied.

    Examples
    --------
    >>> find("permuted-digits/gem", {"seed": 3}).seed
    3
    >>> find("permuted-digits/gemm")
    Traceback (most recent call last):
        ...
    gradproj.experiments.common.errors.ConfigError: preset 'permuted-digits/gemm' is not known; did
    you mean 'permuted-digits/gem'?
    """
    name = canonical(name)
    values = lookup(name, available(), "preset")
    return resolve(merge(values, {"preset": name, **changes}))


def match(name: str) -> list[str]:
    """Return the presets that a pattern such as `split-digits/gem*` matches, or the name itself.

    Examples
    --------
    >>> match("class-digits/ours*")
    ['class-digits/ours', 'class-digits/ours-printed']
    """
    own = fnmatch.filter(available(), f"{glob.escape(name)}/*")
    if own:
        raise ConfigError(
            f"'{name}' is a benchmark with {len(own)} presets; name some of them, such as "
            f"'{name}/ours', or '{name}/*' for all"
        )
    if not any(sign in name for sign in "*?["):
        return [name]
    found = sorted(fnmatch.filter(available(), name))
    if not found:
        raise ConfigError(f"no preset matches '{name}'; see `gradproj list`")
    return found


def compose(benchmark: str, method: str, changes: Mapping[str, Any]) -> RunConfig:
    """Resolve the preset of a benchmark and a method.

    A method without a preset gets the values that the benchmark's presets share.

    Examples
    --------
    >>> compose("permuted-digits", "gem", {}) == find("permuted-digits/gem")
    True
    """
    name = f"{benchmark}/{method}"
    if name in available():
        return find(name, changes)
    values = merge(shared(benchmark), {"benchmark": benchmark, "method": method})
    return resolve(merge(values, changes))
