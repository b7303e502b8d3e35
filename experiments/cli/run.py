"""`gradproj run`: one run or many, from presets or from a benchmark and a method."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from gradproj.experiments.cli.arguments import (
    add_data_dir,
    add_jobs,
    add_seeds,
    add_set,
    number,
    whole_number,
)
from gradproj.experiments.cli.display import make_display
from gradproj.experiments.cli.summary import EXPLANATION, summarize
from gradproj.experiments.common.errors import ConfigError
from gradproj.experiments.runs import presets
from gradproj.experiments.runs.grid import Job, Outcome, execute_all
from gradproj.experiments.runs.jobs import make_jobs
from gradproj.experiments.runs.signals import exit_code

__all__ = ["configure", "execute"]


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "presets",
        nargs="*",
        metavar="PRESET",
        help="configurations such as permuted-digits/ours, or patterns such as "
        "'split-digits/gem*'; gradproj list shows all",
    )
    parser.add_argument(
        "--benchmark",
        metavar="NAME",
        help="with --method, in place of a preset; module:function for your own (default: that "
        "of the preset)",
    )
    parser.add_argument(
        "--method",
        metavar="NAME",
        help="with --benchmark, in place of a preset; module:class for your own (default: that "
        "of the preset)",
    )
    add_seeds(parser, [0], _seed)
    add_set(
        parser,
        "change values of the configuration, such as lr=0.03 memory.batch=0 options.strength=0.25",
    )
    parser.add_argument(
        "--controls",
        action="store_true",
        help="also run the control of each method: the same training without its constraints",
    )
    parser.add_argument(
        "--out", type=Path, default=Path("runs"), metavar="DIR", help="parent of the run folders"
    )
    add_data_dir(parser)
    parser.add_argument("--resume", action="store_true", help="continue unfinished runs")
    parser.add_argument("--force", action="store_true", help="start over, even if finished")
    add_jobs(parser)
    parser.add_argument(
        "--executor",
        choices=["processes", "ray"],
        default="processes",
        help="how several runs are executed",
    )
    parser.add_argument("--engine", type=_renamed, help=argparse.SUPPRESS)
    parser.add_argument(
        "--address", help="address of a Ray cluster (default: a local one is started)"
    )
    parser.add_argument("--device", default="cpu", help="torch device, such as cuda:0")
    parser.add_argument(
        "--tensorboard", action="store_true", help="write TensorBoard files as well"
    )
    parser.add_argument(
        "--checkpoint-seconds",
        type=number(least=0),
        default=60.0,
        metavar="S",
        help="seconds between checkpoints; 0 writes one after every step",
    )


def _renamed(text: str) -> str:
    # "engine" means loop or vmap: how the gradients of one run are computed.
    raise argparse.ArgumentTypeError(f"is now called --executor; write --executor {text}")


def _seed(text: str) -> int:
    if text in presets.available():
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a whole number; presets come before --seeds"
        )
    return whole_number(0)(text)


def execute(args: argparse.Namespace) -> int:
    """Execute the runs and print their results.

    Returns
    -------
    int
        0 if all is done, 1 if a run failed, 2 if none did but the values of one cannot be used,
        130 if Ctrl-C and 143 if SIGTERM stopped one: --resume then continues it.
    """
    if args.address and args.executor != "ray":
        raise ConfigError(f"--address {args.address} is of a Ray cluster; add --executor ray")
    jobs = make_jobs(
        args.presets,
        benchmark=args.benchmark,
        method=args.method,
        seeds=args.seeds,
        overrides=args.set,
        controls=args.controls,
        out=args.out,
        arguments={
            "data_dir": args.data_dir,
            "resume": args.resume,
            "force": args.force,
            "device": args.device,
            "tensorboard": args.tensorboard,
            "checkpoint_seconds": args.checkpoint_seconds,
        },
    )
    console = Console()
    with make_display([job.name for job in jobs], console) as display:
        outcomes = execute_all(
            jobs, display, executor=args.executor, workers=args.jobs, address=args.address
        )
    return _conclude(jobs, outcomes, args.out, console)


def _conclude(jobs: Sequence[Job], outcomes: Sequence[Outcome], out: Path, console: Console) -> int:
    """Print the table of the finished runs and the reasons of the others; return the exit code."""
    kinds = [outcome.kind for outcome in outcomes]
    done = [job for job, kind in zip(jobs, kinds, strict=True) if kind in ("finished", "skipped")]
    table = summarize(done)
    if table is not None:
        console.print(table)
        console.print(EXPLANATION, highlight=False)
    counts = ", ".join(f"{kinds.count(kind)} {kind}" for kind in dict.fromkeys(kinds))
    console.print(f"{counts}; results in {out}", highlight=False, markup=False, soft_wrap=True)
    for outcome in outcomes if len(outcomes) > 1 else ():  # One run alone has just said so.
        if outcome.kind in ("failed", "refused"):
            console.print(
                f"{outcome.name}: {outcome.message}", highlight=False, markup=False, soft_wrap=True
            )
    if "interrupted" in kinds:
        console.print("continue with the same command and --resume", highlight=False)
        return exit_code()
    if "failed" in kinds:
        return 1
    return 2 if "refused" in kinds else 0
