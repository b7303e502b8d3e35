"""What several commands share: types of arguments, and tables that are printed whole."""

from __future__ import annotations

import argparse

from rich.console import Console
from rich.table import Table

__all__ = ["add_jobs", "at_least_one", "print_whole"]


def at_least_one(text: str) -> int:
    """Read a whole number above 0, as a type of argparse."""
    try:
        number = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is too small; use 1 or more")
    return number


def add_jobs(parser: argparse.ArgumentParser) -> None:
    """Declare --jobs."""
    parser.add_argument(
        "--jobs",
        type=at_least_one,
        metavar="N",
        help="runs at a time; one for each core by default",
    )


def print_whole(console: Console, table: Table) -> None:
    """Print a table at its full width: a line too long is folded, a number cut is lost."""
    needed = console.measure(table, options=console.options.update(max_width=10_000)).maximum
    before, console.width = console.width, max(console.width, needed)
    console.print(table)
    console.width = before
