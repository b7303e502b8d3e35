"""Arguments that several commands share, and the layout of their help texts."""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from gradproj.experiments.common.errors import ConfigError

__all__ = [
    "HelpFormatter",
    "add_data_dir",
    "add_jobs",
    "add_seeds",
    "add_set",
    "make_folder",
    "number",
    "whole_number",
]


class HelpFormatter(argparse.HelpFormatter):
    """Adds its default to the help of each option, unless the text already states it."""

    def _get_help_string(self, action: argparse.Action) -> str:
        text = action.help or ""
        default = action.default
        if (
            not action.option_strings
            or default in (None, False, argparse.SUPPRESS)
            or ("default" in text)
        ):
            return text
        many = isinstance(default, Sequence) and not isinstance(default, str)
        shown = " ".join(map(str, default)) if many else str(default)
        return f"{text} (default: {shown.replace('%', '%%') or 'none'})"


def whole_number(least: int) -> Callable[[str], int]:
    """Make a type for argparse that reads whole numbers.

    Examples
    --------
    >>> whole_number(1)("3")
    3
    """

    def read(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None
        if number < least:
            raise argparse.ArgumentTypeError(f"{number} is too small; use a number >= {least}")
        return number

    return read


def number(
    above: float | None = None, least: float | None = None, most: float = math.inf
) -> Callable[[str], float]:
    """Make a type for argparse that reads finite numbers of a range.

    Examples
    --------
    >>> number(above=0, most=1)("0.9")
    0.9
    """
    limits = [f"> {above:g}"] if above is not None else []
    limits += [f">= {least:g}"] if least is not None else []
    limits += [f"<= {most:g}"] if most < math.inf else []

    def read(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not a number") from None
        inside = value <= most and (above is None or value > above)
        if not (math.isfinite(value) and inside and (least is None or value >= least)):
            raise argparse.ArgumentTypeError(
                f"{text} is out of range; use a number {' and '.join(limits)}"
            )
        return value

    return read


def make_folder(path: Path) -> None:
    """Make the folder of --out. Called before any run, so that a mistake costs no training."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"--out: folder {path} cannot be made ({error.strerror}); choose another one"
        ) from None
    if not os.access(path, os.W_OK):
        raise ConfigError(f"--out: folder {path} cannot be written; choose another one")


def add_jobs(parser: argparse.ArgumentParser) -> None:
    """Declare --jobs."""
    parser.add_argument(
        "--jobs",
        type=whole_number(1),
        metavar="N",
        help="number of runs at the same time (default: one per core)",
    )


def add_seeds(
    parser: argparse.ArgumentParser,
    default: Sequence[int],
    read: Callable[[str], int] | None = None,
) -> None:
    """Declare --seeds."""
    parser.add_argument(
        "--seeds",
        nargs="+",
        type=read or whole_number(0),
        default=list(default),
        metavar="N",
        help="random seeds; every configuration is run once per seed",
    )


def add_set(parser: argparse.ArgumentParser, text: str) -> None:
    """Declare --set."""
    parser.add_argument(
        "--set", nargs="+", action="extend", default=[], metavar="KEY=VALUE", help=text
    )


def add_data_dir(parser: argparse.ArgumentParser) -> None:
    """Declare --data-dir."""
    parser.add_argument(
        "--data-dir",
        type=Path,
        metavar="DIR",
        help="folder of the data sets, which are downloaded to it if they are missing "
        "(default: $GRADPROJ_DATA, or the user's cache)",
    )
