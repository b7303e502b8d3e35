"""ACC and BWT against the strength λ, without and with stored samples."""

from __future__ import annotations

from gradproj.experiments.reports import paper
from gradproj.experiments.reports.figures import style
from gradproj.experiments.reports.figures.request import Made, Request, Spec, obtain, title
from gradproj.experiments.reports.figures.series import MEASURED, draw_line
from gradproj.experiments.reports.rows import Row
from gradproj.experiments.reports.tables.table import STORED, Line, Table, spread

__all__ = ["make"]

ENTRIES = ("preserve", "preserve-replay")


def make(request: Request) -> Made:
    """Run both methods at each strength; at 0 they are fine-tuning and replay at that rate."""
    if any(not strength >= 0 for strength in request.strengths):
        raise ValueError(f"--strengths {min(request.strengths):g} is invalid; pass numbers >= 0")
    strengths = sorted(set(request.strengths))
    specs = {
        (entry, strength): Spec(entry, (f"options.strength={strength}",))
        for entry in ENTRIES
        for strength in strengths
    }
    rows = obtain(request, list(specs.values()))
    lines: dict[str, dict[float, Row]] = {entry: {} for entry in ENTRIES}
    for (entry, strength), spec in specs.items():
        if spec in rows:
            lines[entry][strength] = rows[spec]
    name = title(request, rows)
    with style.styled():
        made = style.figure(9.6, 3.4)
        left, right = made.subplots(1, 2)
        place = {strength: i for i, strength in enumerate(strengths)}
        for axes, (measure, label) in zip((left, right), MEASURED.items(), strict=True):
            for number, (entry, found) in enumerate(lines.items()):
                if found:
                    at = [place[strength] for strength in found]
                    draw_line(axes, at, list(found.values()), measure, number, paper.label(entry))
            axes.set_xticks(list(place.values()), [f"{strength:g}" for strength in place])
            axes.set(xlabel="strength λ", ylabel=label)
        style.legend_beside(right)
        made.suptitle(name)
    return Made(made, _table(name, lines))


def _table(name: str, lines: dict[str, dict[float, Row]]) -> Table:
    found = [
        Line(
            (
                paper.label(entry),
                f"{strength:g}",
                row.stored,
                spread(row.values("acc")),
                spread(row.values("bwt_tasks"), digits=3, sign="+"),
                ", ".join(map(str, row.seeds)),
                row.command,
            ),
            row=row,
        )
        for entry, rows in lines.items()
        for strength, row in rows.items()
    ]
    columns = ("method", "λ", STORED, "ACC", "BWT ÷ T", "seeds", "command")
    return Table(f"Strength on {name}", columns, tuple(found))
