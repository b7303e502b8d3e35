"""The tables of a report as Markdown; equal runs give equal bytes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from gradproj.experiments.reports.content import Report, Section
from gradproj.experiments.reports.tables.table import STATUS, Table

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
        lines += ["## Not read", "", *(f"- {_block(problem)}" for problem in report.problems), ""]
    if report.made_with:
        lines += [
            "Made with:",
            "",
            *(f"- {_block(versions)}" for versions in report.made_with),
            "",
        ]
    return "\n".join(lines)


def _section(section: Section) -> Iterator[str]:
    yield from (f"## {_escape(section.title)}", "")
    for table in section.tables:
        yield from (f"### {_escape(table.title)}", "", *render_table(table))
    for words, items in (
        ("Unfinished runs", section.unfinished),
        ("No run yet", section.missing),
        ("Outside twice the spread, reason not yet known", section.unexplained),
    ):
        if items:
            yield from (f"{words}:", "", *(f"- {_block(item)}" for item in items), "")


def render_table(table: Table) -> Iterator[str]:
    """Write one table without its title, line by line."""
    if table.about:
        yield from (_block(table.about), "")
    yield _line([_escape(column) for column in table.columns])
    yield _line(["---"] * len(table.columns))
    noted = [line for line in table.lines if line.note]
    for line in table.lines:
        cells = [_code(cell) if cell.startswith("gradproj ") else _escape(cell)
                 for cell in line.cells]  # fmt: skip
        if line.note:
            cells[0] += f" [{noted.index(line) + 1}]"
        yield _line(cells)
    yield ""
    for number, line in enumerate(noted, 1):
        yield f"[{number}] {_escape(line.cells[0])}: {_escape(line.note)}"
        yield ""


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _escape(text: str) -> str:
    r"""Write text from files so that Markdown shows it as it is.

    Examples
    --------
    >>> _escape("a|b <i> *c* [d](e) per_task _f_")
    'a\\|b &lt;i&gt; \\*c\\* \\[d\\](e) per_task \\_f\\_'
    """
    text = _one_line(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    text = re.sub(r"([\\`*|\[\]~$])", r"\\\1", text)
    # Inside a word an underscore means nothing; names of options are full of them.
    text = re.sub(r"(?<![0-9A-Za-z])_|_(?![0-9A-Za-z])", r"\\_", text)
    # Addresses become links by themselves.
    text = text.replace("://", "&#58;//").replace("@", "&#64;")
    return re.sub(r"(?i)www\.", lambda found: f"{found[0][:-1]}&#46;", text)


def _block(text: str) -> str:
    """Escape text that begins a line, where it could be a heading or a list."""
    text = _escape(text)
    return f"&#{ord(text[0])};{text[1:]}" if re.match(r"[#+=-]|\d+[.)]", text) else text


def _code(text: str) -> str:
    """Write a command; a longer fence than any run of backticks in it keeps it whole."""
    text = _one_line(text).replace("|", "\\|")
    if "`" not in text:
        return f"`{text}`"
    fence = "`" * (max(map(len, re.findall("`+", text))) + 1)
    return f"{fence} {text} {fence}"


def _one_line(text: str) -> str:
    return "".join(c if c.isprintable() else "\ufffd" for c in " ".join(text.split()))
