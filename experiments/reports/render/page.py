"""The report as one page that needs nothing else: figures inside, no network, light and dark."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from gradproj.experiments.common.files import write_atomically
from gradproj.experiments.reports.content import Report
from gradproj.experiments.reports.figures import style
from gradproj.experiments.reports.figures.curves import FIGURES, LINES, gains, sweep
from gradproj.experiments.reports.render.markdown import ABOUT, render
from gradproj.experiments.reports.rows import Row
from gradproj.experiments.reports.tables.table import GAINS, STATUS, Table

__all__ = ["render_page", "write_report"]

TITLE = "Runs beside the paper"

# Figures of a table show this many rows at most: two panels of lines. No reader can tell 300
# lines or matrices apart, and drawing them took a minute and 40 MB.
SHOWN = 2 * LINES


def render_page(report: Report) -> str:
    """Return the page as HTML."""
    environment = Environment(
        loader=PackageLoader("gradproj.experiments.reports.render", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("template.html.j2").render(
        title=TITLE,
        about=ABOUT,
        report=report,
        compared=STATUS,
        status=STATUS | GAINS,
        draw=_draw,
    )


def _draw(table: Table, place: str) -> list[tuple[str, Markup]]:
    """Draw the figures of a table; its rows are its own, so a table without rows has none."""
    drawn = []
    with style.embedded():
        rows = _best(table.rows)
        of_all = f" (highest ACC: {SHOWN} of {len(table.rows)} rows)" if rows != table.rows else ""
        made = {title + of_all: draw(rows) for title, draw in FIGURES.items() if rows}
        if table.swept:
            made[f"ACC and BWT against {table.swept}"] = sweep(table)
        if table.comparisons:
            made["ACC minus that of the control, seed by seed"] = gains(table)
        for title, figure in made.items():
            if figure is not None:
                name = f"{title}: {place}, {table.title}"
                drawn.append((title, Markup(style.to_svg(figure, name))))
    return drawn


def _best(rows: tuple[Row, ...]) -> tuple[Row, ...]:
    """Choose the rows that figures show, in the order of their table."""
    if len(rows) <= SHOWN:
        return rows
    accuracy = [float(np.mean(row.values("acc") or [-1.0])) for row in rows]
    best = sorted(range(len(rows)), key=lambda number: -accuracy[number])[:SHOWN]
    return tuple(rows[number] for number in sorted(best))


def write_report(report: Report, folder: Path) -> list[Path]:
    """Write the page and its tables in Markdown."""
    folder.mkdir(parents=True, exist_ok=True)
    contents = {"report.html": render_page(report), "report.md": render(report, TITLE)}
    for name, text in contents.items():
        write_atomically(folder / name, text.encode())
    return [folder / name for name in contents]
