"""The resolved description of one run: what `config.json` in its folder holds."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from gradproj.experiments import methods, networks
from gradproj.experiments.common.schema import ConfigError, check, ranged, to_plain
from gradproj.experiments.streams import benchmarks

__all__ = ["VERSION", "MemoryConfig", "RunConfig", "complete", "differences", "merge",
           "parse_overrides", "resolve"]  # fmt: skip

# 2: `ours` and `replay` have the option `replay`, and another default strength.
VERSION = 2


@dataclass(frozen=True)
class MemoryConfig:
    """The episodic memory that every replay method of a run is given.

    Attributes
    ----------
    per_task : int
        Samples kept of each task.
    policy : str
        Which samples are kept; see `gradproj.adapters.torch.EpisodicMemory`.
    batch : int
        Samples drawn from each old task at each step; 0 takes the whole memory.
    total : int
        Samples kept of all tasks together, where a method keeps one buffer; 0: as many as
        `per_task` of all tasks.
    per_class : int
        Samples kept of each class in place of `total`, where the buffer is one of exemplars: of
        class-incremental systems and projections, not of tinyer, derpp and gdumb. 0: not set.
    buffers : int
        Random parts of the buffer that play the old tasks in a class-incremental projection.
    redraw : str
        How often these parts are drawn anew.
    """

    per_task: int = ranged(256, low=1)
    policy: str = "last"
    batch: int = ranged(20, low=0)
    total: int = ranged(0, low=0)
    per_class: int = ranged(0, low=0)
    buffers: int = ranged(5, low=1)
    redraw: Literal["step", "epoch", "task"] = "step"

    def budget(self, tasks: int) -> int:
        """Return the size of one buffer for so many tasks."""
        return self.total or self.per_task * tasks


@dataclass(frozen=True)
class RunConfig:
    """All that decides the numbers of one run.

    Attributes
    ----------
    benchmark, method : str
        Names from `gradproj list`, or a person's own as `module:object`.
    options : dataclass
        The method's own options (its `Options` class).
    preset : str
        The preset that the run was made from, "" if none.
    seed : int
        Drives initialisation, data, order, memory and sampling.
    network, network_options
        Name and keyword arguments for `gradproj.experiments.networks.build`.
    stream : mapping
        Keyword arguments for `gradproj.experiments.streams.benchmarks.build`.
    epochs, batch, lr, momentum, weight_decay
        Passes over each task, samples a step, and plain SGD's settings.
    milestones, lr_factor
        Multiply the rate by `lr_factor` at the start of each of these epochs of a task.
    augment : str
        "crop-flip" shifts by up to four pixels and mirrors the images of each training batch.
    memory : MemoryConfig
    ema : float
        Decay of an exponential average of the weights that is evaluated too; 0: none.
    version : int
        Version of this layout.
    """

    benchmark: str
    method: str
    options: Any = field(default_factory=dict)
    preset: str = ""
    seed: int = ranged(0, low=0)
    network: str = "mlp"
    network_options: dict[str, Any] = field(default_factory=dict)
    stream: dict[str, Any] = field(default_factory=dict)
    epochs: int = ranged(1, low=1)
    batch: int = ranged(10, low=1)
    lr: float = ranged(0.1, low=0.0)
    momentum: float = ranged(0.0, low=0.0, high=1.0)
    weight_decay: float = ranged(0.0, low=0.0)
    milestones: tuple[int, ...] = ()
    lr_factor: float = ranged(0.1, low=0.0)
    augment: Literal["none", "crop-flip"] = "none"
    memory: MemoryConfig = field(default_factory=MemoryConfig)
    ema: float = ranged(0.0, low=0.0, below=1.0)
    version: int = VERSION

    def to_json(self) -> str:
        """Write every value, defaults included."""
        return json.dumps(to_plain(self), indent=2) + "\n"


def resolve(values: Mapping[str, Any]) -> RunConfig:
    """Check plain `values` and fill in the defaults.

    Examples
    --------
    >>> config = resolve({"benchmark": "permuted-digits", "method": "gem"})
    >>> config.lr, config.options.strength
    (0.1, 0.0)
    >>> resolve({"benchmark": "permuted-digits", "method": "gem", "epoch": 3})
    Traceback (most recent call last):
        ...
    gradproj.experiments.common.schema.ConfigError: key 'epoch' is not known; did you mean 'epochs'?
    """
    config = complete(values)
    _check_names(config)
    return config


def differences(config: RunConfig, stored: Mapping[str, Any]) -> list[str]:
    """List the keys in which values read from a file differ from `config`.

    Names come first: whoever wrote the file may have named a `module:object`, which is imported
    only if the user named it too.
    """
    names = [key for key in ("benchmark", "method", "network") if key in stored]
    different = [key for key in names if stored[key] != getattr(config, key)]
    if different:
        return different
    mine, theirs = to_plain(config), to_plain(resolve(stored))
    return sorted(key for key in mine if mine[key] != theirs[key])


def complete(values: Mapping[str, Any]) -> RunConfig:
    """Do as `resolve`, but do not look at the benchmark and the network, which may be own code."""
    version = values.get("version", VERSION)
    if isinstance(version, int) and version > VERSION:
        raise ConfigError(
            f"version={version} was written by a newer gradproj; this one reads up to {VERSION}: "
            "update gradproj, or start the run afresh"
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
    {'method': 'ours', 'version': 2, 'options': {'strength': 0.0, 'replay': 'sum'}}
    """
    version, found = values.get("version", VERSION), dict(values)
    if not isinstance(version, int) or isinstance(version, bool) or version >= VERSION:
        return found
    found["version"] = VERSION
    options, strength = values.get("options", {}), {"ours": 0.0, "replay": 0.5}
    if values.get("method") in strength and isinstance(options, Mapping):
        defaults = {"strength": strength[values["method"]], "replay": "sum"}
        found["options"] = {**defaults, **options}
    return found


def _check_names(config: RunConfig) -> None:
    # Their own checks, before any data is touched.
    try:
        benchmarks.check_options(config.benchmark, config.stream)
        networks.check_options(config.network, config.network_options)
    except (TypeError, ValueError) as error:
        raise ConfigError(str(error)) from error


def merge(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Lay `changes` over `base`, table by table.

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
