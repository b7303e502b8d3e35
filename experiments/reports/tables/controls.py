"""Each projection beside its control: the same training without the constraints."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from gradproj.experiments.reports import paper
from gradproj.experiments.reports.comparison import Comparison, compare, compare_at_best_rate
from gradproj.experiments.reports.rows import Row
from gradproj.experiments.reports.tables.published import printed
from gradproj.experiments.reports.tables.table import (
    GAINS,
    SETTINGS,
    Line,
    Table,
    listed,
    settings,
    spread,
)

__all__ = ["INTERVAL", "control_table", "gain_cells", "overview_tables"]

# The column that says how certain a difference is.
INTERVAL = "95 % interval"
GAIN = ("difference", INTERVAL)
BEST = "control's best ACC (lr)"
ABOUT_BEST = (
    "The last column is the control at another learning rate, where one of its runs has a higher "
    "ACC."
)

Found = tuple[tuple[str, ...], Row, Comparison]


def control_table(rows: Sequence[Row]) -> Table | None:
    """Compare every row that has a control with it."""
    columns = ("method", "control", *SETTINGS, "ACC", "control's ACC", *GAIN, "seeds")
    about = (
        "The control is the same training without the constraints: replay of the same stored "
        "samples with the same γ, or fine-tuning (Single) at the same learning rate for methods "
        "that replay nothing."
    )
    found = [
        ((row.name.label, _control_name(comparison)), row, comparison)
        for row, comparison in _compared(rows, rows)
    ]
    return _table("Gain over the control", columns, about, found)


def overview_tables(rows: Sequence[Row]) -> list[Table]:
    """Compare the main methods, with the values of their presets, on every benchmark.

    There is one table per control, because gains over fine-tuning are ten times as large as gains
    over replay.
    """
    columns = ("benchmark", "method", *SETTINGS, "paper ACC", "ACC", "control's ACC", *GAIN,
               "seeds", BEST)  # fmt: skip
    found = [
        ((row.name.series, paper.label(row.name.entry), _published(row)), row, comparison)
        for row, comparison in _compared(filter(_is_own_preset, rows), rows)
    ]
    tables = []
    for title, about, replayed in (
        (
            "Compared with replay alone",
            "The control replays the same stored samples with the same weight γ, w = g + γ Σ gᵢ, "
            "and has no constraint. The difference is the effect of the projection.",
            True,
        ),
        (
            "Compared with fine-tuning",
            "These methods replay nothing. The control is fine-tuning (Single) at the same "
            "learning rate.",
            False,
        ),
    ):
        own = [entry for entry in found if _replays(entry[2]) is replayed]
        ends = [(_at_best_rate(row, rows),) for _, row, _ in own]
        table = _table(title, columns, about, own, ends)
        tables += [table] if table is not None else []
    return tables


def gain_cells(comparison: Comparison | None) -> tuple[str, str]:
    """Write the difference from the control and its interval, with a sign only if it is certain.

    Without an interval, the second cell says "one seed" or "not paired".
    """
    if comparison is None:
        return "–", "–"
    sign, _ = GAINS.get(comparison.verdict, ("", ""))
    difference = f"{comparison.mean:+.2f} {sign}".strip()
    if comparison.interval is None:
        return difference, comparison.verdict
    return difference, "[{:+.2f}, {:+.2f}]".format(*comparison.interval)


def _compared(rows: Iterable[Row], among: Sequence[Row]) -> list[tuple[Row, Comparison]]:
    """Compare rows with their controls at the same rate, or at another if there is no such run."""
    pairs = ((row, compare(row, among) or compare_at_best_rate(row, among)) for row in rows)
    return [(row, comparison) for row, comparison in pairs if comparison is not None]


def _at_best_rate(row: Row, rows: Sequence[Row]) -> str:
    best = compare_at_best_rate(row, rows)
    own = compare(row, rows) or best
    if best is None or own is None or best.control is own.control:
        return "–"
    return f"{spread(best.others)} ({best.control.config['lr']:g})"


def _table(
    title: str,
    columns: tuple[str, ...],
    about: str,
    found: Sequence[Found],
    ends: Sequence[tuple[str, ...]] | None = None,
) -> Table | None:
    if not found:
        return None
    ends = ends or [()] * len(found)
    lines = [_line(*entry, end) for entry, end in zip(found, ends, strict=True)]
    comparisons = tuple(comparison for _, _, comparison in found)
    table = Table(title, columns, tuple(lines), about, comparisons=comparisons)
    table = table.without_empty("γ", "λ", "paper ACC", BEST)
    return replace(table, about=f"{about} {ABOUT_BEST}") if BEST in table.columns else table


def _line(start: tuple[str, ...], row: Row, comparison: Comparison, end: tuple[str, ...]) -> Line:
    cells = (
        *start[:2],
        *settings(row),
        *start[2:],
        spread(comparison.own),
        spread(comparison.others),
        *gain_cells(comparison),
        listed(comparison.seeds),
        *end,
    )
    status = comparison.verdict if comparison.verdict in GAINS else ""
    return Line(cells, status, _note(row, comparison), row)


def _note(row: Row, comparison: Comparison) -> str:
    rate, other = row.config["lr"], comparison.control.config["lr"]
    if rate != other:
        return f"The control ran at lr {other:g}; there is no run of it at lr {rate:g}."
    if not comparison.unpaired:
        return ""
    return (
        f"Seeds {listed(comparison.unpaired)} do not pair: these runs and their controls differ in "
        "the first task, where both are plain SGD. They come from different machines or versions, "
        "so this is a difference of means."
    )


def _control_name(comparison: Comparison) -> str:
    return paper.label(comparison.control.config["method"]).removesuffix(" (control)")


def _replays(comparison: Comparison) -> bool:
    return comparison.control.strengths.replay != "–"


def _is_own_preset(row: Row) -> bool:
    entry = row.name.entry.removesuffix("-3ep").removesuffix("-printed")
    return entry == row.config["method"] in paper.overview() and not row.name.changes


def _published(row: Row) -> str:
    """Return the paper's number for a row, from the first of its tables that has it."""
    for table in paper.tables():
        cell = table.cells.get(row.name.series, {}).get(row.name.entry)
        if cell is not None and table.metric == "acc":
            return printed(cell)
    return "–"
