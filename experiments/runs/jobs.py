"""The jobs of a grid: presets or methods, seeds and changed values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from gradproj.experiments import methods
from gradproj.experiments.common.errors import ConfigError
from gradproj.experiments.common.files import component
from gradproj.experiments.common.schema import to_plain
from gradproj.experiments.common.tables import merge
from gradproj.experiments.methods.config import RunConfig
from gradproj.experiments.runs import presets
from gradproj.experiments.runs.grid import Job
from gradproj.experiments.runs.resolve import parse_overrides, resolve

__all__ = ["make_jobs", "parse_changes"]


# Keys that --set refuses, because the run would be stored under the name of another run.
NAMING = {
    "seed": "all runs would have one seed: use --seeds {}",
    "benchmark": "use --benchmark with --method, or another preset",
    "method": "use --method with --benchmark, or another preset",
    "preset": "name the preset before the options",
    "version": "it is that of the layout of config.json",
}


def make_jobs(
    names: Sequence[str],
    *,
    benchmark: str | None = None,
    method: str | None = None,
    seeds: Sequence[int] = (0,),
    overrides: Sequence[str] = (),
    controls: bool = False,
    out: Path = Path("runs"),
    arguments: Mapping[str, Any],
) -> list[Job]:
    """Return one job per preset (or the benchmark with the method) and seed.

    The folder of a run is `out/benchmark/entry/seed-N`. Changed values become part of the entry, so
    that such a run never uses the folder of the preset itself. With `controls`, the control of each
    method follows: see `Learner.control`.
    """
    if bool(names) == bool(benchmark or method) or bool(benchmark) != bool(method):
        raise ConfigError("name one or more presets, or both --benchmark and --method")
    changes = parse_changes(overrides)
    suffix = "".join(f",{pair.replace('/', '_')}" for pair in sorted(overrides))
    jobs = []
    found = [preset for name in names for preset in presets.match(name)]
    for name in dict.fromkeys(found or [f"{benchmark}/{method}"]):
        for seed in dict.fromkeys(seeds):
            values = merge(changes, {"seed": seed})
            if benchmark and method:
                config = presets.compose(benchmark, method, values)
            else:
                config = presets.find(name, values)
            series, _, entry = presets.canonical(name).replace(":", "-").partition("/")
            run = f"{component(series)}/{component(entry + suffix)}/seed-{seed}"
            jobs.append(Job(run, config, out / run, dict(arguments)))
    if controls:
        jobs += _control_jobs(jobs, changes, suffix, out)
    return jobs


def _control_jobs(
    jobs: Sequence[Job], changes: Mapping[str, Any], suffix: str, out: Path
) -> list[Job]:
    """Return the controls of jobs, each once, without those that are among the jobs."""
    known = {_identity(job.config) for job in jobs}
    found = []
    for job in jobs:
        config = _control_of(job.config)
        if config is None or _identity(config) in known:
            continue
        known.add(_identity(config))
        series, entry, _ = job.name.split("/")
        if equal := _equal_preset(series, config, changes):
            config = replace(config, preset=equal)
            entry = component(equal.partition("/")[2] + suffix)
        else:
            entry = component(f"{entry}-control")
        run = f"{series}/{entry}/seed-{config.seed}"
        found.append(Job(run, config, out / run, dict(job.arguments)))
    return found


def _control_of(config: RunConfig) -> RunConfig | None:
    """Return the configuration of the control: all values but the method and its options stay."""
    values = to_plain(config)
    control = methods.find(config.method).control(values["options"])
    if control is None:
        return None
    method, options = control
    return resolve({**values, "preset": "", "method": method, "options": options})


def _equal_preset(series: str, config: RunConfig, changes: Mapping[str, Any]) -> str | None:
    """Return the preset of a series with this configuration, after the changes of the user."""
    for name, values in presets.available().items():
        if name.startswith(f"{series}/") and values["method"] == config.method:
            try:
                candidate = presets.find(name, merge(changes, {"seed": config.seed}))
            except ConfigError:  # It does not have an option that was changed.
                continue
            if _identity(candidate) == _identity(config):
                return name
    return None


def _identity(config: RunConfig) -> str:
    return replace(config, preset="").to_json()


def parse_changes(overrides: Sequence[str]) -> dict[str, Any]:
    """Parse the values of --set; raise ConfigError for keys that name a run."""
    changes = parse_overrides(overrides)
    for key, cure in NAMING.items():
        if key in changes:
            value = changes[key]
            raise ConfigError(f"--set {key}={value} cannot be set; {cure.format(value)}")
    return changes
