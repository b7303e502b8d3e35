"""`gradproj report`: comparison of runs with the paper's numbers."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from gradproj.experiments.reports.collect import TUNING, collect
from gradproj.experiments.reports.content import build
from gradproj.experiments.reports.export import export, write_pages
from gradproj.experiments.reports.notes import FILE, read_notes
from gradproj.experiments.reports.render.files import write_figures, write_tables
from gradproj.experiments.reports.render.page import write_report

__all__ = ["configure", "execute"]


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "runs",
        nargs="*",
        type=Path,
        metavar="RUNS",
        help="run folders, folders of them, or exported files; runs may be unfinished (default: "
        "the files in --results)",
    )
    parser.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help="folder for report.html and report.md (default: report; with --results, none)",
    )
    parser.add_argument(
        "--results",
        type=Path,
        metavar="DIR",
        help="keep each finished run as a small file in DIR, and write DIR/README.md from all "
        "files there (default: keep none)",
    )
    parser.add_argument(
        "--notes",
        type=Path,
        metavar="FILE",
        help=f"reasons for differences (default: {FILE} in --results or in the first of RUNS)",
    )
    parser.add_argument("--csv", action="store_true", help="write each table to OUT/tables as CSV")
    parser.add_argument(
        "--latex", action="store_true", help="write each table to OUT/tables as LaTeX"
    )
    parser.add_argument(
        "--figures",
        metavar="FORMAT",
        help="write each figure to OUT/figures, for example as svg, png or pdf (default: none)",
    )


def execute(args: argparse.Namespace) -> int:
    """Export if asked to, then write the report."""
    if not args.runs and args.results is None:
        raise ValueError("RUNS is empty; name run folders or exported results, such as runs/")
    runs = args.runs or [args.results]
    collection = collect(runs)
    if not collection.runs:
        for problem in collection.problems:
            print(f"not read: {problem}", file=sys.stderr)
        print(f"gradproj: no runs found in {', '.join(map(str, runs))}", file=sys.stderr)
        return 1
    if args.results is not None:
        if args.runs:
            kept = export(collection.runs, args.results)
            print(f"{len(kept)} runs kept")
            if not kept and not args.results.exists():
                raise ValueError(f"RUNS has no finished run to keep in {args.results}")
        print("\n".join(map(str, write_pages(args.results))))
    as_files = args.csv or args.latex or args.figures
    out = args.out or (None if args.results and not as_files else Path("report"))
    if out is not None:
        notes = args.notes or (args.results or runs[0]) / FILE
        tuning = all(path.name == TUNING for path in runs)
        report = build(collection, read_notes(notes), beside_paper=not tuning)
        print("\n".join(map(str, write_report(report, out))))
        for kind, wanted in (("csv", args.csv), ("tex", args.latex)):
            if wanted:
                written = write_tables(report, out / "tables", kind)
                print(f"{out / 'tables'}: {len(written)} .{kind} files")
        if args.figures:
            written = write_figures(report, out / "figures", args.figures)
            print(f"{out / 'figures'}: {len(written)} .{args.figures} files")
    for problem in collection.problems:
        print(f"not read: {problem}")
    return 0
