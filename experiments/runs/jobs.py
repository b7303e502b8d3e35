"""The jobs of a grid: presets or methods, seeds and changed values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gradproj.experiments.common.errors import ConfigError
from gradproj.experiments.common.files import component
from gradproj.experiments.common.tables import merge
from gradproj.experiments.runs import presets
from gradproj.experiments.runs.grid import Job
from gradproj.experiments.runs.resolve import parse_overrides

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
    out: Path = Path("runs"),
    arguments: Mapping[str, Any],
) -> list[Job]:
    """Return one job per preset (or the benchmark with the method) and seed.

    The folder of a run is `out/benchmark/entry/seed-N`. Changed values become part of the entry, so
    that such a run never uses the folder of the preset itself.
    """
    if bool(names) == bool(benchmark or method) or bool(benchmark) != bool(method):
        raise ConfigError("name one or more presets, or both --benchmark and --method")
    changes = parse_changes(overrides)
    suffix = "".join(f",{pair.replace('/', '_')}" for pair in sorted(overrides))
    jobs = []
    for name in dict.fromkeys(names or [f"{benchmark}/{method}"]):
        for seed in dict.fromkeys(seeds):
            values = merge(changes, {"seed": seed})
            if benchmark and method:
                config = presets.compose(benchmark, method, values)
            else:
                config = presets.find(name, values)
            series, _, entry = presets.canonical(name).replace(":", "-").partition("/")
            run = f"{component(series)}/{component(entry + suffix)}/seed-{seed}"
            jobs.append(Job(run, config, out / run, dict(arguments)))
    return jobs


def parse_changes(overrides: Sequence[str]) -> dict[str, Any]:
    """Parse the values of --set; raise ConfigError for keys that name a run."""
    changes = parse_overrides(overrides)
    for key, cure in NAMING.items():
        if key in changes:
            value = changes[key]
            raise ConfigError(f"--set {key}={value} cannot be set; {cure.format(value)}")
    return changes
