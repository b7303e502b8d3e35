"""`gradproj list`: what there is to run."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from rich.console import Console
from rich.table import Table

from gradproj.experiments.cli import catalogue
from gradproj.experiments.runs import preset_tables

__all__ = ["configure", "execute"]


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("kind", nargs="?", choices=SHOWN, help="all but presets without it")


def execute(args: argparse.Namespace) -> int:
    """Print the chosen lists."""
    console = Console()
    for kind in [args.kind] if args.kind else ("benchmarks", "methods", "networks"):
        console.print(SHOWN[kind]())
    if not args.kind:
        console.print(f"{len(preset_tables.available())} presets; see `gradproj list presets`")
    return 0


def _methods() -> Table:
    table = Table(title="methods", title_justify="left")
    for column in ("name", "scenarios", "what it does", "options"):
        table.add_column(column, overflow="fold")
    for each in catalogue.methods():
        table.add_row(each.name, ", ".join(each.scenarios), each.summary, ", ".join(each.options))
    return table


def _presets() -> str:
    return "\n".join(preset_tables.available())


def _benchmarks() -> str:
    return "benchmarks: " + ", ".join(catalogue.benchmarks())


def _networks() -> str:
    return "networks: " + ", ".join(catalogue.networks())


SHOWN: dict[str, Callable[[], Table | str]] = {
    "benchmarks": _benchmarks,
    "methods": _methods,
    "networks": _networks,
    "presets": _presets,
}
