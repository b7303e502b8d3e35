"""The report as one HTML file without external resources, for light and dark screens and print."""

from __future__ import annotations

from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from gradproj.experiments.common.files import write_atomically
from gradproj.experiments.reports.content import Report
from gradproj.experiments.reports.figures import style
from gradproj.experiments.reports.figures.of_table import figures_of
from gradproj.experiments.reports.render.markdown import ABOUT, NOT_LEARNED, render
from gradproj.experiments.reports.tables.table import GAINS, STATUS, Table

__all__ = ["render_page", "write_report"]

TITLE = "Continual learning: report of runs"


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
        not_learned=NOT_LEARNED,
        report=report,
        compared=STATUS,
        status=STATUS | GAINS,
        draw=_draw,
    )


def _draw(table: Table, place: str) -> list[tuple[str, Markup]]:
    with style.embedded():
        return [
            (title, Markup(style.to_svg(figure, f"{title}: {place}, {table.title}")))
            for title, figure in figures_of(table).items()
        ]


def write_report(report: Report, folder: Path) -> list[Path]:
    """Write the page and its tables in Markdown."""
    folder.mkdir(parents=True, exist_ok=True)
    contents = {"report.html": render_page(report), "report.md": render(report, TITLE)}
    for name, text in contents.items():
        write_atomically(folder / name, text.encode())
    return [folder / name for name in contents]
