"""The table of commands, and the parser that turns a command line into a call."""

from __future__ import annotations

import argparse
import difflib
import importlib
import re
from collections.abc import Iterable, Sequence
from importlib.metadata import version
from typing import NoReturn

from gradproj.experiments.cli.arguments import HelpFormatter

__all__ = ["COMMANDS", "make_parser", "parse"]

# A command is a module with configure(parser) and execute(args) -> exit code, and a line of help.
COMMANDS = {
    "run": (
        "gradproj.experiments.cli.run",
        "train and evaluate, with one folder of results per run",
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
        "compare runs with the paper's numbers: a page with figures, and tables in Markdown",
    ),
    "figure": (
        "gradproj.experiments.cli.figure",
        "draw a figure of the paper or of a sweep, with the runs that it needs",
    ),
    "inspect": (
        "gradproj.experiments.cli.inspect",
        "show the gradients of each layer, to choose rank, strength and layers",
    ),
    "demo": (
        "gradproj.experiments.cli.demo",
        "compare fine-tuning, replay and two projections on embedded data, in about a minute",
    ),
    "completion": (
        "gradproj.experiments.cli.completion",
        "print a script that completes commands, options and presets in bash or zsh",
    ),
}


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are one line; the usage line of a long command would hide them."""

    def error(self, message: str) -> NoReturn:
        wrong = re.fullmatch(r"(.*): invalid choice: '(.*?)' \(choose from (.*)\)", message)
        if wrong:
            argument, word, choices = wrong.groups()
            known = choices.replace("'", "").split(", ")
            message = f"{argument}: {word!r} is not known; {_cure(word, known)}"
        self.exit(2, f"{self.prog}: {message} (see {self.prog} --help)\n")

    def options(self) -> list[str]:
        """Return the options, without those that the help does not show."""
        shown = [action for action in self._actions if action.help != argparse.SUPPRESS]
        return [flag for action in shown for flag in action.option_strings if flag[:2] == "--"]


def make_parser(chosen: Sequence[str]) -> argparse.ArgumentParser:
    """Make the parser of the command line, with the arguments of the `chosen` commands.

    Only these commands are imported, because torch takes seconds to load.
    """
    parser = _Parser(
        prog="gradproj",
        description="Continual learning by gradient projection: experiments.",
        epilog="exit codes: 0 done, 1 something failed, 2 wrong input, 130 stopped by Ctrl-C, "
        "143 stopped by SIGTERM (--resume then continues the runs)",
        formatter_class=HelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"gradproj {version('gradproj')}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, (path, summary) in COMMANDS.items():
        command = commands.add_parser(
            name, help=summary, description=summary, formatter_class=HelpFormatter
        )
        if name in chosen:
            try:
                module = importlib.import_module(path)
            except ModuleNotFoundError as error:
                parser.exit(
                    2, f"gradproj: {error}; install it with pip install 'gradproj[experiments]'\n"
                )
            module.configure(command)
            command.set_defaults(execute=module.execute, parser=command)
    return parser


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Read the command line; `execute` of the result is the function that carries it out."""
    parser = make_parser(argv[:1])
    if argv and not argv[0].startswith("-") and argv[0] not in COMMANDS:
        parser.error(f"command {argv[0]!r} is not known; {_cure(argv[0], COMMANDS)}")
    options = ("-h", "--help", "--version")
    if argv and argv[0].startswith("-") and argv[0] not in options:
        parser.error(f"argument {argv[0]!r} is not known; {_cure(argv[0], options)}")
    args, unknown = parser.parse_known_args(argv)
    parser = vars(args).pop("parser", parser)
    for word in unknown:
        if word.startswith("-"):
            parser.error(f"argument {word!r} is not known; {_cure(word, parser.options())}")
    if unknown:
        parser.error(f"{unknown[0]!r} is one argument too many; leave it out")
    return args


def _cure(word: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(word, list(known), n=1)
    return f"did you mean {near[0]}?" if near else f"use one of {', '.join(known)}"
