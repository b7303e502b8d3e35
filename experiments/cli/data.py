"""`gradproj data`: list, fetch and verify data sets."""

import argparse
import sys
from pathlib import Path

from gradproj.experiments.cli.arguments import add_data_dir
from gradproj.experiments.common.errors import DataError
from gradproj.experiments.data.files import data_dir
from gradproj.experiments.data.registry import SOURCES, find_source, load
from gradproj.experiments.data.source import Source

__all__ = ["configure", "execute"]


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command.

    Examples
    --------
    >>> parser = argparse.ArgumentParser()
    >>> configure(parser)
    >>> parser.parse_args(["fetch", "mnist"]).names
    ['mnist']
    """
    add_data_dir(parser)
    parser.add_argument(
        "action",
        nargs="?",
        default="list",
        choices=("list", "where", "fetch", "verify"),
        help="list the data sets, show where their folder is, fetch (download) them, or verify "
        "their files (default: list)",
    )
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"data sets: {', '.join(SOURCES)} (default: all)"
    )


def execute(args: argparse.Namespace) -> int:
    """Carry out the command; return the exit status."""
    root = data_dir(args.data_dir)
    embedded = "digits" in args.names
    names = [name for name in args.names if name != "digits"]
    sources = [find_source(name) for name in (names if args.names else SOURCES)]
    if args.action == "where":
        print(root)
        return 0
    if args.action == "list":
        _list(sources, root)
        return 0
    if args.action == "fetch" and not args.names:
        raise ValueError(f"fetch needs the name of a data set: {', '.join(SOURCES)}")
    if embedded:
        print("digits: embedded; nothing to fetch or verify")
    return _check(sources, root, fetch=args.action == "fetch")


def _list(sources: list[Source], root: Path) -> None:
    print(f"data folder: {root}")
    print(f"  {'digits':14} embedded  1442 + 355 handwritten digits, 8×8 grey, 10 classes")
    for source in sources:
        state = "missing" if source.missing(root) else "there"
        print(f"  {source.name:14} {state:9} {source.about}")


def _check(sources: list[Source], root: Path, fetch: bool) -> int:
    """Load each data set, which checks every file; a failure does not stop the others."""
    failed = 0
    for source in sources:
        if not fetch and len(sources) == len(SOURCES) and source.missing(root):
            print(f"{source.name}: missing")
            continue
        try:
            data = load(source.name, root, download=fetch)
        except DataError as error:
            failed += 1
            print(f"{source.name}: {error}", file=sys.stderr)
        else:
            counts = f"{len(data.train_x):,} + {len(data.test_x):,}"
            print(f"{source.name}: {counts} images, {data.classes} classes")
    return 1 if failed else 0
