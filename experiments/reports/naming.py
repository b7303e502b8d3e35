"""Names of runs: the preset with the changed values, and the command that repeats the run."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

from gradproj.experiments.common.errors import ConfigError
from gradproj.experiments.common.registry import is_own
from gradproj.experiments.common.schema import check, to_plain
from gradproj.experiments.common.tables import merge
from gradproj.experiments.methods.config import RunConfig
from gradproj.experiments.reports import paper
from gradproj.experiments.runs import presets
from gradproj.experiments.runs.resolve import complete

__all__ = ["Name", "completed", "fingerprint", "flatten", "label_without", "name_of"]

# These keys do not distinguish configurations.
_NOT_IDENTITY = ("seed", "preset", "version")


@dataclass(frozen=True)
class Name:
    """The name of all runs that differ only in their seed.

    Attributes
    ----------
    benchmark : str
    entry : str
        The preset's part after the slash, or the method if there is no preset.
    changes : tuple of str
        `key=value` for each value that differs from the preset or the method's defaults.
    presets : tuple of str
        All presets, as `benchmark/entry`, that describe exactly this run.
    preset : str
        The preset to start from, or "".
    method : str
    """

    benchmark: str
    entry: str
    changes: tuple[str, ...]
    presets: tuple[str, ...]
    preset: str
    method: str

    def __str__(self) -> str:
        return ",".join((f"{self.series.replace(':', '-')}/{self.entry}", *self.changes))

    @property
    def series(self) -> str:
        """The presets' file; a benchmark may have several."""
        return self.preset.partition("/")[0] or self.benchmark

    @property
    def label(self) -> str:
        """The name in tables."""
        changes = [change.removeprefix("options.") for change in self.changes]
        series = [self.series] if self.series != self.benchmark else []
        return ", ".join((paper.label(self.entry), *series, *changes))

    def command(self, seeds: Sequence[int]) -> str:
        """Return the command that repeats these runs."""
        start = [self.preset] if self.preset else []
        if not start:
            start = ["--benchmark", self.benchmark, "--method", self.method]
        words = ["gradproj", "run", *start, "--seeds", *map(str, seeds)]
        if self.changes:
            words += ["--set", *self.changes]
        return shlex.join(words)


def name_of(config: Mapping[str, Any]) -> Name:
    """Name a run by its configuration.

    The name depends only on the values of the configuration. Setting a value to that of the preset
    does not change the name, and an alias has the name of its preset.

    Examples
    --------
    >>> config = to_plain(presets.find("permuted-digits/f", {"options": {"strength": 0.125}}))
    >>> name = name_of(config)
    >>> str(name), name.presets
    ('permuted-digits/layerwise,options.strength=0.125', ())
    >>> name.command([0, 1])
    'gradproj run permuted-digits/layerwise --seeds 0 1 --set options.strength=0.125'
    """
    benchmark, method = str(config["benchmark"]), str(config["method"])
    equal = _by_fingerprint(benchmark).get(fingerprint(config), ())
    stored = presets.canonical(str(config.get("preset", "")))
    if equal:
        preset = stored if stored in equal else equal[0]
        return Name(benchmark, preset.partition("/")[2], (), equal, preset, method)
    preset = stored if stored in presets.available() else ""
    changes = _changes(config, _base(preset, benchmark, method))
    entry = preset.partition("/")[2] or method
    return Name(benchmark, entry, changes, (), preset, method)


def label_without(key: str, config: Mapping[str, Any]) -> str:
    """Label a run by its method and its changes from the method's preset, except for one key.

    Examples
    --------
    >>> label_without("options.rank", to_plain(presets.find("permuted-digits/full-pca")))
    'Ours, layers=all'
    """
    benchmark, method = str(config["benchmark"]), str(config["method"])
    preset = f"{str(config.get('preset', '')).partition('/')[0] or benchmark}/{method}"
    known = preset if preset in presets.available() else ""
    changes = _changes(config, _base(known, benchmark, method))
    kept = [change for change in changes if not change.startswith(f"{key}=")]
    return ", ".join((paper.label(method), *(change.removeprefix("options.") for change in kept)))


def fingerprint(config: Mapping[str, Any]) -> str:
    """Return one string for everything that determines a run's results except its seed."""
    return json.dumps(flatten(completed(config)), sort_keys=True)


def flatten(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flatten nested tables to dotted keys.

    Examples
    --------
    >>> flatten({"lr": 0.1, "memory": {"batch": 20}, "seed": 3})
    {'lr': 0.1, 'memory.batch': 20}
    """
    flat: dict[str, Any] = {}
    for key, value in config.items():
        if not prefix and key in _NOT_IDENTITY:
            continue
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = value
    return flat


def completed(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Add the keys that a configuration written by an older version does not have."""
    if is_own(str(config.get("method", ""))):
        return config  # A report must not run code that a file names.
    plain = _completed(json.dumps(config, sort_keys=True))
    return config if plain is None else plain


# Cached, because a report completes each configuration about twelve times.
@lru_cache(maxsize=4096)
def _completed(text: str) -> Mapping[str, Any] | None:
    try:
        plain: dict[str, Any] = to_plain(complete(json.loads(text)))
    except ConfigError:
        return None
    return plain


@cache
def _by_fingerprint(benchmark: str) -> Mapping[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    for name, values in presets.available().items():
        if values["benchmark"] == benchmark:
            key = fingerprint(to_plain(presets.find(name)))
            found[key] = (*found.get(key, ()), name)
    return found


def _base(preset: str, benchmark: str, method: str) -> dict[str, Any]:
    if preset:
        return flatten(to_plain(presets.find(preset)))
    values = merge(presets.shared(benchmark), {"benchmark": benchmark, "method": method})
    try:
        # The options of a user's method have no defaults here: a report must not run its code.
        return flatten(to_plain(check(RunConfig, values) if is_own(method) else complete(values)))
    except ConfigError:
        return {}  # A method or benchmark of another version: all values count as changes.


def _changes(config: Mapping[str, Any], base: Mapping[str, Any]) -> tuple[str, ...]:
    own = {k: v for k, v in flatten(completed(config)).items() if k not in ("benchmark", "method")}
    different = {k: v for k, v in own.items() if k not in base or base[k] != v}
    return tuple(f"{key}={_toml(value)}" for key, value in sorted(different.items()))


def _toml(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))
