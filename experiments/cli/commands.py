"""The table of commands, and what turns the words of a command line into a call."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Sequence

__all__ = ["COMMANDS", "parse"]

# A command is a module with configure(parser) and execute(args) -> exit code, and a line of help.
COMMANDS = {
    "run": (
        "gradproj.experiments.cli.run",
        "train and evaluate; results go to a folder for each run",
    ),
    "list": (
        "gradproj.experiments.cli.list",
        "show benchmarks, methods, networks and presets",
    ),
    "data": (
        "gradproj.experiments.cli.data",
        "list, fetch and verify data sets",
    ),
    "report": (
        "gradproj.experiments.cli.report",
        "set runs beside the paper's numbers: a page with figures, tables in Markdown, small files",
    ),
    "figure": (
        "gradproj.experiments.cli.figure",
        "draw one of the paper's figures, running what it needs",
    ),
    "inspect": (
        "gradproj.experiments.cli.inspect",
        "show each layer's gradients: norms, cosines, spectrum, to choose rank, strength, layers",
    ),
    "demo": (
        "gradproj.experiments.cli.demo",
        "compare ours, GEM, A-GEM and fine-tuning on embedded data, with a table and a figure",
    ),
}


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Read the command line; `execute` of the result is the function that carries it out."""
    parser = argparse.ArgumentParser(
        prog="gradproj",
        description="Continual learning by gradient projection: experiments.",
        epilog="exit codes: 0 done, 1 something failed, 2 wrong input, 130 stopped by Ctrl-C, "
        "143 stopped by SIGTERM (--resume then continues the runs)",
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, (path, summary) in COMMANDS.items():
        command = commands.add_parser(name, help=summary, description=summary)
        # Only the command that is called is imported: torch takes seconds to load.
        if name in argv[:1]:
            try:
                module = importlib.import_module(path)
            except ModuleNotFoundError as error:
                parser.exit(
                    2, f"gradproj: {error}; pip install 'gradproj[experiments]' brings it\n"
                )
            module.configure(command)
            command.set_defaults(execute=module.execute)
    return parser.parse_args(argv)
