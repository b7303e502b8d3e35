"""The tables and figures of a report as files: CSV, LaTeX, and any format of matplotlib."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterator
from pathlib import Path

from gradproj.experiments.common.files import write_atomically
from gradproj.experiments.reports.content import Report
from gradproj.experiments.reports.figures import style
from gradproj.experiments.reports.figures.of_table import figures_of
from gradproj.experiments.reports.render.markdown import COMMAND
from gradproj.experiments.reports.tables.table import Table

__all__ = ["to_csv", "to_latex", "write_figures", "write_tables"]

_NUMBER = r"[+-]?\d+(?:\.\d+)?"


def write_tables(report: Report, folder: Path, kind: str) -> list[Path]:
    """Write one file per table.

    Parameters
    ----------
    report : Report
    folder : Path
        Made if it does not exist.
    kind : "csv" or "tex"
    """
    render = _KINDS[kind]
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name, _, table in _tables(report):
        written.append(folder / f"{name}.{kind}")
        write_atomically(written[-1], render(table).encode())
    return written


def write_figures(report: Report, folder: Path, kind: str) -> list[Path]:
    """Draw every figure of the page into a file of its own.

    Parameters
    ----------
    report : Report
    folder : Path
        Made if it does not exist.
    kind : str
        A format of matplotlib: "svg", "png", "pdf" and others.
    """
    style.check_kind(Path(f"figure.{kind}"))
    written = []
    with style.styled():
        for name, place, table in _tables(report):
            for title, figure in figures_of(table).items():
                figure.suptitle(f"{table.title}: {place}", fontsize="medium")
                written.append(style.save(figure, folder / f"{name}-{_slug(title)}.{kind}"))
    return written


def to_csv(table: Table) -> str:
    r"""Write a table as CSV; a mean and its deviation get a column each.

    Examples
    --------
    >>> from gradproj.experiments.reports.tables.table import Line
    >>> to_csv(Table("t", ("method", "ACC"), (Line(("GEM", "81.9 ± 0.4")), Line(("EWC", "–")))))
    'method,ACC,ACC ±\nGEM,81.9,0.4\nEWC,,\n'
    """
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    split = [any(" ± " in line.cells[i] for line in table.lines) for i in range(len(table.columns))]
    heads = zip(table.columns, split, strict=True)
    noted = ["note"] if any(line.note for line in table.lines) else []
    writer.writerow([part for c, two in heads for part in ((c, f"{c} ±") if two else (c,))] + noted)
    for line in table.lines:
        cells = [p for c, two in zip(line.cells, split, strict=True) for p in _values(c, two)]
        writer.writerow([_inert(cell) for cell in cells + ([line.note] if noted else [])])
    return out.getvalue()


def _values(cell: str, two: bool) -> tuple[str, ...]:
    """Return a cell without its sign ▲ or ▼, in one part or two."""
    cell = "" if cell == "–" else re.sub(rf"^({_NUMBER}) [^±\d]$", r"\1", cell)
    if not two:
        return (cell,)
    mean, _, deviation = cell.partition(" ± ")
    return mean, deviation


def _inert(cell: str) -> str:
    """Quote text that a spreadsheet would run as a formula."""
    formula = cell.startswith(("=", "+", "-", "@")) and not re.fullmatch(_NUMBER, cell)
    return f"'{cell}" if formula else cell


def to_latex(table: Table) -> str:
    r"""Write a table as LaTeX, for the packages booktabs and amssymb; without its commands.

    Examples
    --------
    >>> from gradproj.experiments.reports.tables.table import Line
    >>> print(to_latex(Table("R&D", ("method", "γ"), (Line(("a_b", "1 ± 2")),))), end="")
    % R\&D. Needs \usepackage{booktabs, amssymb}
    \begin{tabular}{lr}
    \toprule
    method & $\gamma$ \\
    \midrule
    a\_b & 1 $\pm$ 2 \\
    \bottomrule
    \end{tabular}
    """
    shown = [i for i, column in enumerate(table.columns) if column != COMMAND]

    def row(cells: tuple[str, ...]) -> str:
        return " & ".join(_latex(cells[i]) for i in shown) + r" \\"

    lines = [
        rf"% {_latex(table.title)}. Needs \usepackage{{booktabs, amssymb}}",
        rf"\begin{{tabular}}{{l{'r' * (len(shown) - 1)}}}",
        r"\toprule",
        row(table.columns),
        r"\midrule",
        *(row(line.cells) for line in table.lines),
        r"\bottomrule",
        r"\end{tabular}",
    ]
    return "\n".join(lines) + "\n"


_KINDS: dict[str, Callable[[Table], str]] = {"csv": to_csv, "tex": to_latex}

_LATEX = {
    **{character: f"\\{character}" for character in "&%$#_{}"},
    "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
    "[": "{[}", "<": "$<$", ">": "$>$",  # after \\ a bracket would be an argument
    "γ": r"$\gamma$", "λ": r"$\lambda$", "±": r"$\pm$", "÷": r"$\div$", "−": "$-$", "–": "--",
    "Σ": r"$\Sigma$", "▲": r"$\blacktriangle$", "▼": r"$\blacktriangledown$",
    "●": r"$\bullet$", "◐": r"$\circ$", "×": r"$\times$", "²": "$^2$", "≥": r"$\ge$",
}  # fmt: skip


def _latex(text: str) -> str:
    """Escape text; a character that plain LaTeX may not know becomes a question mark."""
    one_line = " ".join(text.split())
    return "".join(_LATEX.get(c, c if c.isascii() and c.isprintable() else "?") for c in one_line)


def _tables(report: Report) -> Iterator[tuple[str, str, Table]]:
    """Yield each table with a unique name for files and the place where the report has it."""
    found = [("overview", "all benchmarks", table) for table in report.overview]
    found += [(s.anchor, s.title, table) for s in report.sections for table in s.tables]
    used: dict[str, int] = {}
    for start, place, table in found:
        name = _slug(f"{start}-{table.title}")
        used[name] = used.get(name, 0) + 1
        yield (name if used[name] == 1 else f"{name}-{used[name]}"), place, table


def _slug(text: str) -> str:
    """Return a name for files: lower-case letters, digits and hyphens, at most 100."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:100]
