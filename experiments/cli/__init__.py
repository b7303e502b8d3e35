"""The command `gradproj`; each of its commands is a module."""

from __future__ import annotations

import argparse
import importlib
import io
import sys
from collections.abc import Sequence

from gradproj.experiments.cli.output import steady_output
from gradproj.experiments.runs.signals import ended_at_once

__all__ = ["COMMANDS", "main"]

STOPPED = "gradproj: stopped"

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


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code, as the help of the command line lists them."""
    for stream in (sys.stdout, sys.stderr):
        # A terminal that cannot show ± or ḡ shows a question mark. Streams put in place of these,
        # as by tests, may have no encoding.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    with steady_output():
        try:
            return _main(sys.argv[1:] if argv is None else argv)
        except (ValueError, OSError) as error:
            # Wrong input has a message of its own; a traceback would only hide it.
            print(f"gradproj: {error}", file=sys.stderr)
            return 2
        except KeyboardInterrupt:
            print(STOPPED, file=sys.stderr)
            return 130


def _main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="gradproj",
        description="Continual learning by gradient projection: experiments.",
        epilog="exit codes: 0 done, 1 something failed, 2 wrong input, 130 stopped by Ctrl-C or "
        "SIGTERM (runs then go on with --resume)",
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, (path, summary) in COMMANDS.items():
        command = commands.add_parser(name, help=summary, description=summary)
        # Only the command that is called is imported: torch takes seconds to load.
        if name in argv[:1]:
            try:
                with ended_at_once(STOPPED):
                    module = importlib.import_module(path)
            except ModuleNotFoundError as error:
                parser.exit(
                    2, f"gradproj: {error}; pip install 'gradproj[experiments]' brings it\n"
                )
            module.configure(command)
            command.set_defaults(execute=module.execute)
    args = parser.parse_args(argv)
    return int(args.execute(args))
