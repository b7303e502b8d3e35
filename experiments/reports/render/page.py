"""The report as one page that needs nothing else: figures inside, no network, light and dark."""

from __future__ import annotations

from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from gradproj.experiments.common.files import write_atomically
from gradproj.experiments.reports.content import Report
from gradproj.experiments.reports.figures import style
from gradproj.experiments.reports.figures.curves import FIGURES, gains, sweep
from gradproj.experiments.reports.render.markdown import ABOUT, render
from gradproj.experiments.reports.tables.table import STATUS, Table

__all__ = ["render_page", "write_report"]

TITLE = "Runs beside the paper"


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
        status=STATUS,
        draw=_draw,
    )


def _draw(table: Table, place: str) -> list[tuple[str, Markup]]:
    """Draw the figures of a table; its rows are its own, so a table without rows has none."""
    drawn = []
    with style.embedded():
        made = {title: draw(table.rows) for title, draw in FIGURES.items() if table.rows}
        if table.swept:
            made[f"ACC and BWT against {table.swept}"] = sweep(table)
        if table.differences:
            made["ACC over the control's, seed by seed"] = gains(table)
        for title, figure in made.items():
            if figure is not None:
                name = f"{title}: {place}, {table.title}"
                drawn.append((title, Markup(style.to_svg(figure, name))))
    return drawn


def write_report(report: Report, folder: Path) -> list[Path]:
    """Write the page and its tables in Markdown."""
    folder.mkdir(parents=True, exist_ok=True)
    contents = {"report.html": render_page(report), "report.md": render(report, TITLE)}
    for name, text in contents.items():
        write_atomically(folder / name, text.encode())
    return [folder / name for name in contents]
