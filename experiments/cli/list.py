"""`gradproj list`: what there is to run."""

from __future__ import annotations

import argparse
import inspect
from collections.abc import Callable

from rich.console import Console
from rich.table import Table

from gradproj.experiments import methods, networks
from gradproj.experiments.runs import presets
from gradproj.experiments.streams import benchmarks

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
        console.print(f"{len(presets.available())} presets; see `gradproj list presets`")
    return 0


def _methods() -> Table:
    table = Table(title="methods", title_justify="left")
    for column in ("name", "scenarios", "what it does", "options"):
        table.add_column(column, overflow="fold")
    for name, learner in methods.available().items():
        summary = (inspect.getdoc(learner) or "").splitlines()[0]
        options = ", ".join(learner.Options.__dataclass_fields__)
        table.add_row(name, ", ".join(learner.scenarios), summary, options)
    return table


def _presets() -> str:
    return "\n".join(presets.available())


def _benchmarks() -> str:
    return "benchmarks: " + ", ".join(benchmarks.BENCHMARKS)


def _networks() -> str:
    return "networks: " + ", ".join(networks.NETWORKS)


SHOWN: dict[str, Callable[[], Table | str]] = {
    "benchmarks": _benchmarks,
    "methods": _methods,
    "networks": _networks,
    "presets": _presets,
}
