"""`gradproj demo`: four methods on the embedded digits, in a minute or two."""

from __future__ import annotations

import argparse
from pathlib import Path

from gradproj.experiments.cli.arguments import add_jobs
from gradproj.experiments.reports.figures import demo

__all__ = ["configure", "execute"]


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("--out", type=Path, default=Path("runs") / "demo", help="where results go")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2], metavar="N")
    add_jobs(parser)


def execute(args: argparse.Namespace) -> int:
    """Run the demo."""
    return demo.run_demo(args.out, seeds=args.seeds, workers=args.jobs)
