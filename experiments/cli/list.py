"""`gradproj list`: the benchmarks, methods, networks and presets, and the values of each.

It imports torch only to show the defaults of a method or all values of a preset.
"""

from __future__ import annotations

import argparse
import fnmatch
import importlib
import shutil
import textwrap
from collections.abc import Iterable, Mapping
from typing import Any

from gradproj.experiments.cli import catalogue
from gradproj.experiments.common.registry import nearest
from gradproj.experiments.runs import preset_tables as presets

__all__ = ["KINDS", "configure", "execute"]

KINDS = ("benchmarks", "methods", "networks", "presets")

# Presets that match a pattern are listed with all their values up to this number.
FEW = 3


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "pattern",
        nargs="?",
        metavar="PATTERN",
        help="show details of what matches: a name, a part of one, or a pattern such as "
        f"'split-*/ours'; {', '.join(KINDS)} list all names of one kind (default: an overview)",
    )


def execute(args: argparse.Namespace) -> int:
    """Print the overview, the names of one kind, or the details of what matches."""
    if args.pattern is None:
        lines = _overview()
    elif args.pattern in KINDS:
        lines = _names(args.pattern)
    else:
        lines = _details(args.pattern)
    print("\n".join(lines))
    return 0


def _overview() -> list[str]:
    lines = ["Benchmarks"]
    lines += _rows({name: _about_benchmark(name) for name in _families()})
    lines += ["", "Methods"]
    lines += _rows({name: each.summary for name, each in _methods().items()})
    lines += ["", "Networks", *_rows({"": ", ".join(catalogue.networks())}, shorten=False), ""]
    count = len(presets.available())
    lines.append(f"{count} presets, named BENCHMARK/METHOD, some with a variant such as -3ep.")
    lines.append("Details with values: gradproj list PATTERN (gem, split-digits, '*/ours-3ep').")
    return lines


def _names(kind: str) -> list[str]:
    if kind == "benchmarks":
        return _rows({name: _about_benchmark(name) for name in _families()})
    if kind == "methods":
        return _rows({name: each.summary for name, each in _methods().items()})
    return list(catalogue.networks() if kind == "networks" else presets.available())


def _details(pattern: str) -> list[str]:
    networks, known = catalogue.networks(), presets.available()
    parts = [_describe_benchmark(name) for name in _matching(pattern, _families())]
    parts += [_describe_method(name) for name in _matching(pattern, _methods())]
    parts += [[f"Network {name}"] for name in _matching(pattern, networks)]
    # A part of a name is meant for benchmarks and methods, because each is part of many presets.
    found = _matching(pattern, known) if "/" in pattern or not parts else []
    if len(found) > FEW:
        parts.append(_preset_rows(found))
    else:
        parts += [_describe_preset(name) for name in found]
    if not parts:
        raise ValueError(
            nearest(pattern, [*KINDS, *_families(), *_methods(), *networks, *known], "name")
        )
    return [line for part in parts for line in (*part, "")][:-1]


def _matching(pattern: str, names: Iterable[str]) -> list[str]:
    """Return the name that equals the pattern, or all that match it or contain it."""
    names = list(names)
    if pattern in names:
        return [pattern]
    if any(sign in pattern for sign in "*?["):
        return fnmatch.filter(names, pattern)
    return [name for name in names if pattern in name]


def _families() -> list[str]:
    """Return the benchmarks, and the other protocols of some that have presets of their own."""
    return sorted(
        {*catalogue.benchmarks(), *(name.partition("/")[0] for name in presets.available())}
    )


def _presets_of(family: str) -> list[str]:
    return [name for name in presets.available() if name.startswith(f"{family}/")]


def _about_benchmark(name: str) -> str:
    values = presets.shared(name)
    benchmark = catalogue.benchmarks()[values.get("benchmark", name)]
    stream = {**benchmark.options, **values.get("stream", {})}
    parts = [f"{benchmark.kind} {benchmark.dataset}"]
    if "tasks" in stream:
        parts.append(f"{stream['tasks']} tasks")
    if stream.get("scenario") == "class":
        parts.append("class-incremental")
    if "network" in values:
        parts.append(values["network"])
    count = len(_presets_of(name))
    return ", ".join([*parts, f"{count} presets" if count else "no presets"])


def _methods() -> dict[str, catalogue.Entry]:
    return {each.name: each for each in catalogue.methods()}


def _describe_benchmark(name: str) -> list[str]:
    lines = [f"Benchmark {name}: {_about_benchmark(name)}"]
    lines += _assignments(presets.shared(name))
    return [*lines, "Presets, with the values that differ", *_preset_rows(_presets_of(name))]


def _describe_method(name: str) -> list[str]:
    method = _methods()[name]
    lines = [f"Method {name}: {method.summary}"]
    width = min(shutil.get_terminal_size().columns, 100)
    for paragraph in method.about:
        lines += textwrap.wrap(paragraph, width, initial_indent="  ", subsequent_indent="  ")
    lines.append(f"  scenarios: {', '.join(method.scenarios)}")
    if method.options:
        defaults = importlib.import_module("gradproj.experiments.cli.values").defaults(name)
        lines += ["  options and defaults, for --set:", *_assignments({"options": defaults})]
    return lines


def _describe_preset(name: str) -> list[str]:
    values = importlib.import_module("gradproj.experiments.cli.values").values(name)
    return [f"Preset {name}", *_assignments(values)]


def _preset_rows(names: Iterable[str]) -> list[str]:
    rows = {}
    for name in names:
        family, _, entry = name.partition("/")
        values = presets.available()[name]
        common = dict(_flat(presets.shared(family)))
        if f"{entry}-".startswith(f"{values['method']}-"):
            common["method"] = values["method"]  # The name of the preset says it.
        own = _flat(values)
        rows[name] = " ".join(
            f"{key}={_written(value)}" for key, value in own if common.get(key, ...) != value
        )
    return _rows(rows, shorten=False)


def _assignments(values: Mapping[str, Any]) -> list[str]:
    return [f"  {key}={_written(value)}" for key, value in _flat(values)]


def _flat(values: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    """Return dotted keys and values, as --set takes them."""
    found: list[tuple[str, Any]] = []
    for key, value in values.items():
        nested = isinstance(value, Mapping) and value
        found += _flat(value, f"{prefix}{key}.") if nested else [(prefix + key, value)]
    return found


def _written(value: Any) -> str:
    """Write a value as TOML, which --set reads."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value).replace(" ", "") if isinstance(value, (list, tuple)) else str(value)


def _rows(table: Mapping[str, str], *, shorten: bool = True) -> list[str]:
    """Write names and texts in two columns that fit the terminal."""
    width = max(shutil.get_terminal_size().columns, 60)
    first = max(map(len, table), default=0) + 4
    rows = []
    for name, text in table.items():
        if shorten:
            text = textwrap.shorten(text, width - first, placeholder=" …")
            rows.append(f"  {name}".ljust(first) + text)
        elif first + len(text) <= width:
            rows.append((f"  {name}".ljust(first) + text).rstrip())
        else:
            indent = " " * (6 if name else 2)
            rows += [f"  {name}"] if name else []
            rows += textwrap.wrap(
                text, width, initial_indent=indent, subsequent_indent=indent,
                break_long_words=False, break_on_hyphens=False,
            )  # fmt: skip
    return rows
