"""`gradproj demo`: four methods on the embedded digits, in a minute or two."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from gradproj.experiments.cli.arguments import add_jobs
from gradproj.experiments.cli.display import make_display
from gradproj.experiments.reports.figures.demo import METHODS, collect, draw, tabulate
from gradproj.experiments.runs.grid import execute_all
from gradproj.experiments.runs.jobs import make_jobs
from gradproj.experiments.runs.signals import exit_code

__all__ = ["configure", "execute", "run_demo"]


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("--out", type=Path, default=Path("runs") / "demo", help="where results go")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2], metavar="N")
    add_jobs(parser)


def execute(args: argparse.Namespace) -> int:
    """Run the demo."""
    return run_demo(args.out, seeds=args.seeds, workers=args.jobs)


def run_demo(
    out: Path,
    seeds: Sequence[int] = (0, 1, 2),
    overrides: Sequence[str] = (),
    workers: int | None = None,
    console: Console | None = None,
) -> int:
    """Run what is not there yet, print the table, save the figure; return an exit code."""
    console = console or Console()
    jobs = make_jobs(
        [f"permuted-digits/{method}" for method in METHODS],
        seeds=seeds,
        overrides=overrides,
        out=out,
        arguments={"resume": True},
    )
    with make_display([job.name for job in jobs], console) as display:
        outcomes = execute_all(jobs, display, workers=workers)
    failed = [outcome for outcome in outcomes if outcome.kind not in ("finished", "skipped")]
    if any(outcome.kind == "interrupted" for outcome in failed):
        console.print("stopped; the same command goes on from here", highlight=False)
        return exit_code()
    for outcome in failed:
        console.print(f"{outcome.name}: {outcome.message}", markup=False, highlight=False)
    if failed:
        return 1
    results = collect(jobs)
    console.print(tabulate(results))
    figure = draw(results, out / "demo.png")
    said = f"accuracy of each task over time: {figure}"
    console.print(said, highlight=False, markup=False, soft_wrap=True)
    return 0
