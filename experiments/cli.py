"""The command `gradproj`; each of its commands is a module."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence

from gradproj.experiments.schema import ConfigError
from gradproj.experiments.storage import RunError

__all__ = ["COMMANDS", "main"]

# A command's module has HELP, configure(parser) and execute(args) -> exit code.
COMMANDS = {
    "run": "gradproj.experiments.commands.run",
    "list": "gradproj.experiments.commands.list",
    "data": "gradproj.experiments.data.command",
    "report": "gradproj.experiments.commands.report",
    "figure": "gradproj.experiments.commands.figure",
    "inspect": "gradproj.experiments.commands.inspect",
    "demo": "gradproj.experiments.commands.demo",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    parser = argparse.ArgumentParser(
        prog="gradproj", description="Continual learning by gradient projection: experiments."
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, path in COMMANDS.items():
        module = importlib.import_module(path)
        command = commands.add_parser(name, help=module.HELP, description=module.HELP)
        module.configure(command)
        command.set_defaults(execute=module.execute)
    args = parser.parse_args(argv)
    try:
        return int(args.execute(args))
    except (ConfigError, RunError, ValueError, OSError) as error:
        # Wrong input has a message of its own; a traceback would only hide it.
        print(f"gradproj: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("gradproj: stopped", file=sys.stderr)
        return 130
