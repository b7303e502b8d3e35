"""`gradproj figure`: figures of the paper and of sweeps; missing runs are executed first."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table as RichTable

from gradproj.experiments.cli.arguments import (
    add_data_dir,
    add_jobs,
    add_seeds,
    add_set,
    make_folder,
    number,
    whole_number,
)
from gradproj.experiments.cli.display import make_display
from gradproj.experiments.cli.tables import print_whole
from gradproj.experiments.common.files import write_atomically
from gradproj.experiments.reports import figures
from gradproj.experiments.reports.figures import style
from gradproj.experiments.reports.figures.request import Request
from gradproj.experiments.reports.render.markdown import render_figure
from gradproj.experiments.reports.tables.table import Table
from gradproj.experiments.runs.grid import Job, Outcome, execute_all

__all__ = ["configure", "execute"]


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    shown = "; ".join(f"{name}: {figures.summary(make)}" for name, make in figures.FIGURES.items())
    parser.add_argument(
        "name", metavar="NAME", help=f"{shown.replace('%', '%%')}; module:function for your own"
    )
    parser.add_argument(
        "--benchmark",
        metavar="NAME",
        default="permuted-digits",
        help="benchmark of the runs; digits need no download",
    )
    add_seeds(parser, [0, 1, 2])
    parser.add_argument("--ranks", nargs="+", type=whole_number(0), default=[1, 2, 3, 5, 8],
                        metavar="K", help="ranks of k-sweep")  # fmt: skip
    parser.add_argument("--memory", nargs="+", type=whole_number(1), default=[10, 50, 256],
                        metavar="N", help="stored samples per task of memory-sweep")  # fmt: skip
    parser.add_argument("--strengths", nargs="+", type=number(least=0), metavar="λ",
                        default=[0.0, 0.1, 0.3, 1.0, 3.0, 10.0],
                        help="strengths of strength-sweep; 0 is plain training")  # fmt: skip
    add_set(parser, "change values of all runs, such as stream.tasks=3")
    parser.add_argument("--runs", type=Path, default=Path("runs"), metavar="DIR",
                        help="folder of the runs; missing ones are executed")  # fmt: skip
    parser.add_argument("--draw-only", action="store_true", help="do not execute missing runs")
    add_data_dir(parser)
    add_jobs(parser)
    parser.add_argument("--out", type=Path, metavar="FILE",
                        help="file of the figure; its table is written beside it as .md "
                        "(default: NAME-BENCHMARK.png)")  # fmt: skip


def execute(args: argparse.Namespace) -> int:
    """Make the figure and its table."""
    make = figures.find(args.name)
    out = args.out or Path(f"{args.name}-{args.benchmark}.png".replace(":", "-"))
    style.check_kind(out)
    make_folder(out.parent)
    request = Request(
        benchmark=args.benchmark,
        seeds=tuple(args.seeds),
        overrides=tuple(args.set),
        ranks=tuple(args.ranks),
        memory=tuple(args.memory),
        strengths=tuple(args.strengths),
        runs=args.runs,
        data_dir=args.data_dir,
        draw_only=args.draw_only,
        workers=args.jobs,
        execute=_execute,
    )
    made = make(request)
    path = style.save(made.figure, out)
    write_atomically(path.with_suffix(".md"), render_figure(made.table, path.name).encode())
    console = Console()
    print_whole(console, _printed(made.table))
    both = f"{path}, {path.with_suffix('.md')}"
    console.print(both, highlight=False, markup=False, soft_wrap=True)
    return 0


def _execute(jobs: Sequence[Job], workers: int | None) -> list[Outcome]:
    with make_display([job.name for job in jobs]) as display:
        return execute_all(jobs, display, workers=workers)


def _printed(table: Table) -> RichTable:
    shown = [i for i, column in enumerate(table.columns) if column != "command"]
    out = RichTable(title=table.title, title_justify="left")
    for i in shown:
        out.add_column(table.columns[i], justify="left" if i == 0 else "right")
    for line in table.lines:
        out.add_row(*(line.cells[i] for i in shown))
    return out
