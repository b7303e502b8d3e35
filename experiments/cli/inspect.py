"""`gradproj inspect`: gradients layer by layer, to choose rank, strength and layers."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import get_args

from rich.console import Console

from gradproj.experiments.cli.arguments import add_data_dir, add_set, number, whole_number
from gradproj.experiments.inspection.gradients import short_run
from gradproj.experiments.inspection.subjects import from_benchmark, from_factory
from gradproj.experiments.methods.projection.learner import LayerNames, layer_groups
from gradproj.experiments.reports.figures import inspection, style
from gradproj.experiments.runs.resolve import parse_overrides

__all__ = ["configure", "execute"]


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    subject = parser.add_mutually_exclusive_group()
    subject.add_argument(
        "--benchmark",
        metavar="NAME",
        default="permuted-digits",
        help="benchmark to train on, with the network of its presets",
    )
    subject.add_argument(
        "--factory",
        metavar="MODULE:FUNCTION",
        help="your own subject in place of a benchmark: a function that returns (model, loss, "
        "tasks), where loss(model, *batch) is a scalar and each task an iterable of batches "
        "(default: the benchmark)",
    )
    parser.add_argument(
        "--layers",
        choices=get_args(LayerNames),
        default="module",
        metavar="NAME",
        help=f"what counts as one layer: {', '.join(get_args(LayerNames))}",
    )
    parser.add_argument("--tasks", type=whole_number(3), metavar="N",
                        help="use the first N tasks, at least 3 (default: all)")  # fmt: skip
    parser.add_argument("--steps", type=whole_number(0), default=50, metavar="N",
                        help="training steps per old task")  # fmt: skip
    parser.add_argument("--moments", type=whole_number(1), default=20, metavar="N",
                        help="number of measurements on the last task")  # fmt: skip
    parser.add_argument("--lr", type=number(above=0),
                        help="learning rate (default: that of the preset, or 0.1)")  # fmt: skip
    parser.add_argument("--share", type=number(above=0, most=1), default=0.9,
                        help="share of the task-specific part that a rank must cover")  # fmt: skip
    add_set(parser, "change values of the benchmark's configuration, such as network=mlp")
    add_data_dir(parser)
    parser.add_argument("--out", type=Path, default=Path("inspect.png"), metavar="FILE",
                        help="file of the figure")  # fmt: skip


def execute(args: argparse.Namespace) -> int:
    """Train briefly, print the table and save the figure."""
    style.check_kind(args.out)
    if args.factory:
        for option, given in (("--set", args.set), ("--data-dir", args.data_dir)):
            if given:
                raise ValueError(
                    f"{option} is for benchmarks; with --factory, change {args.factory} itself"
                )
        subject = from_factory(args.factory, 0.1, tasks=args.tasks)
    else:
        subject = from_benchmark(
            args.benchmark, parse_overrides(args.set), tasks=args.tasks, data_dir=args.data_dir
        )
    found = short_run(
        subject.model,
        subject.loss,
        subject.tasks,
        layers=layer_groups(subject.model, args.layers),
        steps=args.steps,
        moments=args.moments,
        lr=subject.lr if args.lr is None else args.lr,
    )
    console = Console()
    console.print(inspection.tabulate(found, subject.name, args.share))
    for line in inspection.advise(found, args.share):
        console.print(line, highlight=False, markup=False)
    with style.styled():
        path = style.save(inspection.draw(found, subject.name, args.share), args.out)
    console.print(f"figure: {path}", highlight=False, markup=False, soft_wrap=True)
    return 0
