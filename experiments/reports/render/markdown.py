"""The tables of a report as Markdown; equal runs give equal bytes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from urllib.parse import quote

from gradproj.experiments.reports.content import Report, Section
from gradproj.experiments.reports.tables.table import STATUS, Table

__all__ = ["ABOUT", "COMMAND", "NOT_LEARNED", "render", "render_figure", "render_table"]

# The column of commands, which would make every table as wide as its longest command.
COMMAND = "command"
# The title of the list of tasks that runs did not learn.
NOT_LEARNED = "Not learned (loss and accuracy of the task are not better than guessing)"

ABOUT = {
    "ACC": "mean test accuracy over all tasks after the last one, in percent",
    "BWT ÷ T and BWT ÷ (T−1)": "backward transfer, a fraction: the sum of the changes of the old "
    "tasks, divided by the number of tasks (as in the released code of GEM; compared with the "
    "paper) or by the number of old tasks (as GEM's paper defines it)",
    "forgetting": "mean drop from a task's best accuracy, in points",
    "γ, λ": "weight of the replayed gradients, and strength of the projection in input space",
    "stored per task": "training samples kept of each task",
    "±": "standard deviation over the seeds",
    "95 % interval": "of the mean difference, from a t-test over differences at equal seeds; ▲ and "
    "▼ beside a difference from the control mean that the interval does not contain zero",
    "minutes": "mean duration of a run on one core, including evaluation",
}


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
    lines += [part for sentence in report.answer for part in (f"**{_block(sentence)}**", "")]
    lines += [f"- {_block(name)}: {_escape(words)}." for name, words in ABOUT.items()] + [""]
    if report.compares:
        lines += ["Differences from the paper:", ""]
        lines += [
            f"- {sign} {words}: {report.count(status)}" for status, (sign, words) in STATUS.items()
        ] + [""]
    for table in report.overview:
        lines += [f"## {table.title}", "", *render_table(table)]
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
        (NOT_LEARNED, section.not_learned),
        ("Unfinished runs", section.unfinished),
        ("No run yet", section.missing),
        ("Outside twice the spread, reason not yet known", section.unexplained),
    ):
        if items:
            yield from (f"{words}:", "", *(f"- {_block(item)}" for item in items), "")


def render_table(table: Table) -> Iterator[str]:
    """Write one table without its title, line by line; commands go below it."""
    if table.about:
        yield from (_block(table.about), "")
    shown = [i for i, column in enumerate(table.columns) if column != COMMAND]
    yield _line([_escape(table.columns[i]) for i in shown])
    yield _line(["---"] * len(shown))
    for line in table.lines:
        cells = [_escape(line.cells[i]) for i in shown]
        if line.note:
            cells[0] += f" [{table.note_number(line)}]"
        yield _line(cells)
    yield ""
    for number, note in enumerate(table.notes, 1):
        yield from (f"[{number}] {_escape(note)}", "")
    if COMMAND in table.columns:
        yield from _commands(table)


def render_figure(table: Table, picture: str) -> str:
    """Write a page with a figure, the file `picture` in the same folder, and its table.

    Examples
    --------
    >>> render_figure(Table("ACC", ("rate",), ()), "a b.svg").splitlines()[:3]
    ['# ACC', '', '![ACC](a%20b.svg)']
    """
    title = _escape(table.title)
    return "\n".join([f"# {title}", "", f"![{title}]({quote(picture)})", "", *render_table(table)])


def _commands(table: Table) -> Iterator[str]:
    """Write the commands that repeat the lines of a table, folded away."""
    at = table.columns.index(COMMAND)
    yield from ("<details><summary>Commands</summary>", "")
    for line in table.lines:
        yield f"- {_escape(line.cells[0])}: {_code(line.cells[at])}"
    yield from ("", "</details>", "")


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
