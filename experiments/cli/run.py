"""`gradproj run`: one run or many, from presets or from a benchmark and a method."""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from gradproj.experiments.cli.arguments import add_jobs
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
        "presets", nargs="*", metavar="PRESET", help="such as mnist-permutations/ours"
    )
    parser.add_argument(
        "--benchmark",
        help="instead of a preset, together with --method; with what its presets have in common; "
        "your own as module:function",
    )
    parser.add_argument(
        "--method",
        help="instead of a preset, together with --benchmark; your own as module:class",
    )
    parser.add_argument("--seeds", nargs="+", type=_seed, default=[0], metavar="N")
    parser.add_argument(
        "--set",
        nargs="+",
        action="extend",
        default=[],
        metavar="KEY=VALUE",
        help="change a value: lr=0.03 memory.batch=0 options.strength=0.25",
    )
    parser.add_argument("--out", type=Path, default=Path("runs"), help="parent of the run folders")
    parser.add_argument("--data-dir", type=Path, help="where the data sets are or go")
    parser.add_argument("--resume", action="store_true", help="continue unfinished runs")
    parser.add_argument("--force", action="store_true", help="start over, finished or not")
    add_jobs(parser)
    parser.add_argument("--executor", choices=["processes", "ray"], default="processes")
    parser.add_argument("--engine", type=_renamed, help=argparse.SUPPRESS)
    parser.add_argument("--address", help="of the Ray cluster; a local one without it")
    parser.add_argument("--device", default="cpu", help="such as cuda:0")
    parser.add_argument("--tensorboard", action="store_true", help="write TensorBoard files too")
    parser.add_argument(
        "--checkpoint-seconds",
        type=_seconds,
        default=60.0,
        metavar="S",
        help="time between checkpoints",
    )


def _renamed(text: str) -> str:
    # "engine" is loop or vmap, which computes the gradients of one run.
    raise argparse.ArgumentTypeError(f"is now called --executor; write --executor {text}")


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number") from None
    if not 0 <= seconds < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is no time; use a number of seconds from 0 on")
    return seconds


def _seed(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        hint = "; presets come before --seeds" if text in presets.available() else ""
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number{hint}") from None


def execute(args: argparse.Namespace) -> int:
    """Do the runs and say how they ended.

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
