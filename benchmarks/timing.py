"""Timing in turns, and the options and tables that all benchmarks share."""

from __future__ import annotations

import random
import time
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import median
from typing import Any

EMPTY = "–"  # the cell of a value that was not measured


def parser(description: str | None) -> ArgumentParser:
    """Make the parser of a benchmark from its module docstring, with the option --quick."""
    made = ArgumentParser(description=description, formatter_class=RawDescriptionHelpFormatter)
    made.add_argument(
        "--quick",
        action="store_true",
        help="use the smallest sizes and few repetitions, to check that the benchmark runs; "
        "the ratios are then too noisy to quote",
    )
    return made


class Turns:
    """Times of functions that were called in turns, one entry per turn.

    Load from other programs changes from second to second, but less within one turn. Ratios are
    therefore formed per turn, and the median over the turns is returned.
    """

    def __init__(self, times: Mapping[str, Sequence[float]]) -> None:
        self.times = times

    def __contains__(self, name: str) -> bool:
        return name in self.times

    def seconds(self, name: str) -> float:
        """Return the median time of a function."""
        return median(self.times[name])

    def ratios(self, name: str, base: str) -> list[float]:
        """Return the time of one function over that of another, per turn."""
        pairs = zip(self.times[name], self.times[base], strict=True)
        return [one / other for one, other in pairs]

    def ratio(self, name: str, base: str) -> float:
        """Return the median over the turns of the time of one function over that of another."""
        return median(self.ratios(name, base))

    def spread(self, names: Iterable[str], base: str) -> float:
        """Return the largest relative difference between the even and the odd turns' ratios.

        Both halves of the turns measure the same ratio, so their difference is an estimate of the
        error that noise causes.
        """
        halves = [
            (median(ratios[::2]), median(ratios[1::2]))
            for ratios in (self.ratios(name, base) for name in names)
        ]
        return max(abs(even / odd - 1) for even, odd in halves)


def in_turns(
    functions: Mapping[str, Callable[[], Any]],
    seconds: float,
    *,
    least: int = 5,
    clock: Callable[[], float] = time.process_time,
) -> Turns:
    """Call all functions in turns and time each call.

    The order within a turn is random, because the time of a function depends on the function
    before it. In a fixed order, two copies of the floor in core.py differed by up to 17 %.

    Parameters
    ----------
    functions : mapping
        Name to function. Each is called once before the timing starts.
    seconds : float
        Start no new turn after this wall time.
    least : int
        Make at least this number of turns. Two or more are needed for :meth:`Turns.spread`.
    clock : callable
        CPU time of the process unless given.
    """
    times: dict[str, list[float]] = {name: [] for name in functions}
    for function in functions.values():
        function()
    order = list(functions)
    shuffle = random.Random(0).shuffle
    end = time.perf_counter() + seconds
    turns = 0
    while turns < least or time.perf_counter() < end:
        shuffle(order)
        for name in order:
            function = functions[name]
            start = clock()
            function()
            times[name].append(clock() - start)
        turns += 1
    return Turns(times)


class Table:
    """A Markdown table that is printed row by row, as the measurements arrive.

    Parameters
    ----------
    title : str
        The line above the table.
    columns : sequence of str
        Headings of the cells; the first column holds the labels and has no heading.
    label_width, width : int
        Width of the longest label, and of the widest cell if it exceeds its heading.
    """

    def __init__(
        self, title: str, columns: Sequence[str], *, label_width: int = 24, width: int = 8
    ) -> None:
        self._widths = [label_width, *(max(len(name), width) for name in columns)]
        print(f"\n{title}\n")
        self._print("", columns)
        rules = ("-" * (width - 1) + ":" for width in self._widths[1:])
        print("|", " | ".join(("-" * label_width, *rules)), "|", flush=True)

    def row(self, label: str, *cells: float | str | None) -> None:
        """Print one row; numbers get two decimals, and None is printed as a dash."""
        self._print(label, [_text(cell) for cell in cells])

    def _print(self, label: str, cells: Sequence[str]) -> None:
        first, *widths = self._widths
        padded = (f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=True))
        print("|", " | ".join((f"{label:<{first}}", *padded)), "|", flush=True)


def _text(cell: float | str | None) -> str:
    if cell is None:
        return EMPTY
    return cell if isinstance(cell, str) else f"{cell:.2f}"


def milliseconds(seconds: float) -> str:
    """Format a time as a cell."""
    return f"{seconds * 1e3:.2f} ms"
