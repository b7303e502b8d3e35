"""`gradproj data`: what is there, where, fetch it, check it."""

import argparse
import sys
from pathlib import Path
from typing import Any

from gradproj.experiments.data.files import DataError, data_dir
from gradproj.experiments.data.registry import SOURCES, find_source, load
from gradproj.experiments.data.source import Source

__all__ = ["add_parser", "run"]


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    """Add the `data` command to a parser's subparsers; the parsed `run(args)` does the work.

    Examples
    --------
    >>> parser = argparse.ArgumentParser()
    >>> _ = add_parser(parser.add_subparsers())
    >>> args = parser.parse_args(["data", "--data-dir", "somewhere", "list"])
    >>> args.action, args.run is run
    ('list', True)
    """
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "data", help="list, fetch and verify data sets"
    )
    parser.add_argument(
        "--data-dir",
        metavar="DIR",
        help="data folder (default: $GRADPROJ_DATA, else the user's cache)",
    )
    parser.add_argument(
        "action",
        nargs="?",
        default="list",
        choices=("list", "where", "fetch", "verify"),
        help="list: what is there; where: the data folder; fetch: download; verify: check files",
    )
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"data sets: {', '.join(SOURCES)} (default: all)"
    )
    parser.set_defaults(run=run)
    return parser


def run(args: argparse.Namespace) -> int:
    """Carry out the command; return the exit status."""
    root = data_dir(args.data_dir)
    try:
        sources = [find_source(name) for name in args.names] or list(SOURCES.values())
    except ValueError as error:
        print(f"gradproj data: {error}", file=sys.stderr)
        return 2
    if args.action == "where":
        print(root)
        return 0
    if args.action == "list":
        _list(sources, root)
        return 0
    if args.action == "fetch" and not args.names:
        print("gradproj data fetch: name the data sets, or 'gradproj data list'", file=sys.stderr)
        return 2
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
            print(
                f"{source.name}: {len(data.train_x):,} + {len(data.test_x):,} images, as expected"
            )
    return 1 if failed else 0
