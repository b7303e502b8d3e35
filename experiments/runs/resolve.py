"""Conversion of plain values to a checked configuration."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from typing import Any

from gradproj.experiments import methods, networks
from gradproj.experiments.common.errors import ConfigError
from gradproj.experiments.common.schema import check, to_plain
from gradproj.experiments.common.tables import merge
from gradproj.experiments.methods.config import VERSION, RunConfig
from gradproj.experiments.streams import benchmarks

__all__ = ["complete", "differences", "parse_overrides", "resolve"]


def resolve(values: Mapping[str, Any]) -> RunConfig:
    """Check plain `values` and fill in the defaults.

    Examples
    --------
    >>> config = resolve({"benchmark": "permuted-digits", "method": "gem"})
    >>> config.lr, config.options.strength
    (0.1, 1.0)
    >>> resolve({"benchmark": "permuted-digits", "method": "gem", "epoch": 3})
    Traceback (most recent call last):
        ...
    gradproj.experiments.common.errors.ConfigError: key 'epoch' is not known; did you mean 'epochs'?
    """
    config = complete(values)
    _check_names(config)
    return config


def differences(config: RunConfig, stored: Mapping[str, Any]) -> list[str]:
    """List the keys in which values read from a file differ from `config`.

    Names come first: the author of the file may have named a `module:object`, which is imported
    only if the user named it too.
    """
    names = [key for key in ("benchmark", "method", "network") if key in stored]
    different = [key for key in names if stored[key] != getattr(config, key)]
    if different:
        return different
    mine, theirs = to_plain(config), to_plain(resolve(stored))
    return sorted(key for key in mine if mine[key] != theirs[key])


def complete(values: Mapping[str, Any]) -> RunConfig:
    """Check everything except the benchmark and the network, which may be user-defined code."""
    version = values.get("version", VERSION)
    if isinstance(version, int) and version > VERSION:
        raise ConfigError(
            f"version={version} was written by a newer gradproj; this one reads up to {VERSION}: "
            "update gradproj, or start the run over"
        )
    values = upgrade(values)
    options = values.pop("options", {})
    config = check(RunConfig, values)
    learner = methods.find(config.method)
    if not isinstance(options, Mapping):
        raise ConfigError(f"options={options!r} must be a table of keys and values")
    checked = check(learner.Options, options, "options.")
    return RunConfig(**{**_shallow(config), "options": checked})


def upgrade(values: Mapping[str, Any]) -> dict[str, Any]:
    """Write out the defaults of an older version, so that a stored run keeps its meaning.

    Examples
    --------
    >>> upgrade({"method": "ours", "version": 1})
    {'method': 'ours', 'version': 4, 'options': {'strength': 0.0, 'replay': 'sum'}}
    """
    version, found = values.get("version", VERSION), dict(values)
    if not isinstance(version, int) or isinstance(version, bool) or version >= VERSION:
        return found
    found["version"] = VERSION
    memory = values.get("memory")
    if isinstance(memory, Mapping) and memory.get("redraw") == "step":
        found["memory"] = {key: value for key, value in memory.items() if key != "redraw"}
    options, method = values.get("options", {}), values.get("method")
    defaults = {
        name: default
        for before, of_version in _DEFAULTS.items()
        if version < before
        for name, default in of_version.items()
    }
    if method in defaults and isinstance(options, Mapping):
        found["options"] = {**defaults[method], **options}
    return found


# Defaults of options before the version that changed them.
_DEFAULTS: dict[int, dict[str, dict[str, Any]]] = {
    2: {
        "ours": {"strength": 0.0, "replay": "sum"},
        "replay": {"strength": 0.5, "replay": "sum"},
    },
    4: {
        "gem": {"strength": 0.0, "replay": "sum"},
        "agem": {"strength": 0.0},
        "sgem": {"strength": 0.0},
    },
}


def _check_names(config: RunConfig) -> None:
    # They check their own options before any data is loaded.
    try:
        benchmarks.check_options(config.benchmark, config.stream)
        networks.check_options(config.network, config.network_options)
    except (TypeError, ValueError) as error:
        raise ConfigError(str(error)) from error


def parse_overrides(pairs: Iterable[str]) -> dict[str, Any]:
    """Read `key=value` pairs; keys may be dotted, values are TOML (bare words are strings).

    Examples
    --------
    >>> parse_overrides(["lr=0.03", "options.layers=module"])
    {'lr': 0.03, 'options': {'layers': 'module'}}
    """
    out: dict[str, Any] = {}
    for pair in pairs:
        key, sign, text = pair.partition("=")
        if not sign or not key.strip():
            raise ConfigError(
                f"--set {pair!r} is not understood; write key=value, after the presets"
            )
        try:
            value = tomllib.loads(f"value = {text}")["value"]
        except tomllib.TOMLDecodeError:
            value = text
        for part in reversed(key.strip().split(".")):
            value = {part: value}
        out = merge(out, value)
    return out


def _shallow(config: RunConfig) -> dict[str, Any]:
    return {name: getattr(config, name) for name in config.__dataclass_fields__}
