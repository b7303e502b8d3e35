"""The tables of a report as Markdown; equal runs give equal bytes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gradproj.experiments.report.content import Report, Section
from gradproj.experiments.report.tables import STATUS, Table

__all__ = ["ABOUT", "render", "render_table"]

ABOUT = (
    "ACC: mean test accuracy over all tasks after the last one, in percent. BWT: backward "
    "transfer as a fraction, divided by the number of tasks, as the code behind the paper's tables "
    "does. Forgetting: mean drop from a task's best accuracy, in percent. ± is the sample standard "
    "deviation over the seeds; minutes are the mean of a run on one core, evaluation included."
)


def render(report: Report, title: str, introduction: str = "") -> str:
    """Write the whole report.

    Parameters
    ----------
    report : Report
    title : str
        The heading.
    introduction : str
        Put under the heading.
    """
    lines = [f"# {title}", ""]
    if introduction:
        lines += [introduction, ""]
    lines += [ABOUT, ""]
    signs = "; ".join(
        f"{sign} {words}: {report.count(status)}" for status, (sign, words) in STATUS.items()
    )
    if report.compares:
        lines += [f"Differences to the paper, and how many there are of each: {signs}.", ""]
    if report.overview is not None:
        lines += [f"## {report.overview.title}", "", *render_table(report.overview)]
    for section in report.sections:
        lines += _section(section)
    if report.problems:
        lines += ["## Not read", "", *(f"- {_escape(problem)}" for problem in report.problems), ""]
    if report.made_with:
        lines += ["Made with:", "", *(f"- {versions}" for versions in report.made_with), ""]
    return "\n".join(lines)


def _section(section: Section) -> Iterator[str]:
    yield from (f"## {section.title}", "")
    for table in section.tables:
        yield from (f"### {table.title}", "", *render_table(table))
    for words, items in (
        ("Unfinished runs", section.unfinished),
        ("No run yet", section.missing),
        ("Outside twice the spread, reason not yet known", section.unexplained),
    ):
        if items:
            yield from (f"{words}:", "", *(f"- {_escape(item)}" for item in items), "")


def render_table(table: Table) -> Iterator[str]:
    """Write one table without its title, line by line."""
    if table.about:
        yield from (table.about, "")
    yield _line(table.columns)
    yield _line(["---"] * len(table.columns))
    noted = [line for line in table.lines if line.note]
    for line in table.lines:
        cells = [f"`{cell}`" if cell.startswith("gradproj ") else _escape(cell)
                 for cell in line.cells]  # fmt: skip
        if line.note:
            cells[0] += f" [{noted.index(line) + 1}]"
        yield _line(cells)
    yield ""
    for number, line in enumerate(noted, 1):
        yield f"[{number}] {line.cells[0]}: {line.note}"
        yield ""


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _escape(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")
