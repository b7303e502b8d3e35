"""Tables in the terminal."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

__all__ = ["print_whole"]


def print_whole(console: Console, table: Table) -> None:
    """Print a table at its full width: a folded line can be read, a cut number cannot."""
    needed = console.measure(table, options=console.options.update(max_width=10_000)).maximum
    before, console.width = console.width, max(console.width, needed)
    console.print(table)
    console.width = before
