"""`gradproj demo`: four methods on the embedded digits, in about a minute on two cores."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from gradproj.experiments.cli.arguments import add_jobs, add_seeds, make_folder
from gradproj.experiments.cli.display import make_display
from gradproj.experiments.reports.figures.demo import METHODS, collect, draw, tabulate
from gradproj.experiments.runs.grid import execute_all
from gradproj.experiments.runs.jobs import make_jobs
from gradproj.experiments.runs.signals import exit_code

__all__ = ["configure", "execute", "run_demo"]

MEANING = (
    "ACC: mean test accuracy of all tasks at the end. BWT: mean change of a task's\n"
    "accuracy since it was learned. Stored: samples per task. Replay is the control:\n"
    "what the stored samples achieve alone."
)
NEXT = (
    "`gradproj list` shows what else there is. Two methods where each task has new classes:\n"
    "Next: gradproj run split-digits/replay split-digits/preserve --seeds 0 1 2"
)


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("runs") / "demo",
        metavar="DIR",
        help="folder of the runs and of the figure",
    )
    add_seeds(parser, [0, 1, 2])
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
    """Execute the runs that are not finished, print the table, save the figure."""
    console = console or Console()
    make_folder(out)
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
        console.print("stopped; the same command continues from here", highlight=False)
        return exit_code()
    for outcome in failed:
        console.print(f"{outcome.name}: {outcome.message}", markup=False, highlight=False)
    if failed:
        return 1
    results = collect(jobs)
    console.print(tabulate(results))
    figure = draw(results, out / "demo.png")
    for text in (MEANING, f"Accuracy of each task over time: {figure}", NEXT):
        console.print(text, highlight=False, markup=False, soft_wrap=True)
    return 0
