"""`gradproj inspect`: gradients layer by layer, to choose rank, strength and layers."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import get_args

from rich.console import Console

from gradproj.experiments.cli.arguments import at_least_one, print_whole
from gradproj.experiments.inspection.gradients import short_run
from gradproj.experiments.inspection.subjects import from_benchmark, from_factory
from gradproj.experiments.methods.projection.learner import LayerNames, layer_groups
from gradproj.experiments.reports.figures import inspection, style
from gradproj.experiments.runs.resolve import parse_overrides

__all__ = ["configure", "execute"]


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--benchmark", default="permuted-digits", help="with its preset's network")
    what.add_argument(
        "--factory",
        metavar="MODULE:FUNCTION",
        help="your own: returns (model, loss, tasks); loss(model, *batch) is a scalar and each "
        "task an iterable of batches",
    )
    parser.add_argument("--layers", default="module", help="module, tensor, child, five or all")
    parser.add_argument("--tasks", type=at_least_one, metavar="N",
                        help="the first so many; all without it")  # fmt: skip
    parser.add_argument("--steps", type=int, default=50, help="of training on each old task")
    parser.add_argument("--moments", type=int, default=20, help="measurements on the last task")
    parser.add_argument("--lr", type=float, help="learning rate; the preset's, or 0.1")
    parser.add_argument("--share", type=float, default=0.9, help="of the specific part to keep")
    parser.add_argument("--set", nargs="+", action="extend", default=[], metavar="KEY=VALUE",
                        help="change a value of the benchmark's configuration")  # fmt: skip
    parser.add_argument("--data-dir", type=Path, help="where the data sets are or go")
    parser.add_argument("--out", type=Path, default=Path("inspect.png"), help="the figure")


def execute(args: argparse.Namespace) -> int:
    """Do the short run, print the table and save the figure."""
    if not 0 < args.share <= 1:
        raise ValueError(f"--share={args.share} must be above 0 and at most 1")
    if args.lr is not None and args.lr <= 0:
        raise ValueError(f"--lr={args.lr} must be above 0")
    if args.layers not in get_args(LayerNames):
        raise ValueError(f"--layers={args.layers!r} must be one of {get_args(LayerNames)}")
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
    print_whole(console, inspection.tabulate(found, subject.name, args.share))
    for line in inspection.advise(found, args.share):
        console.print(line, highlight=False, markup=False)
    with style.styled():
        path = style.save(inspection.draw(found, subject.name, args.share), args.out)
    console.print(f"figure: {path}", highlight=False, markup=False, soft_wrap=True)
    return 0
