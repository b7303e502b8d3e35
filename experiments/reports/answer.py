"""The result of a report in a few sentences: the gains over the controls."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from gradproj.experiments.reports.tables.table import Table

__all__ = ["answer"]


def answer(overview: Sequence[Table]) -> tuple[str, ...]:
    """Say for each table of the overview how often the projection was better than its control.

    A difference counts as certain if its 95 % interval does not contain zero.
    """
    return tuple(_sentence(table) for table in overview)


def _sentence(table: Table) -> str:
    counts = Counter(comparison.verdict for comparison in table.comparisons)
    start = (
        f"{table.title}, the projection is better in {counts['better']} of "
        f"{counts.total()} comparisons, worse in {counts['worse']} and not certainly different in "
        f"{counts['open']}."
    )
    certain = [c.mean for c in table.comparisons if c.verdict in ("better", "worse")]
    if len(certain) == 1:
        start += f" The certain difference is {certain[0]:+.1f} points."
    elif certain:
        start += (
            f" The certain differences range from {min(certain):+.1f} to {max(certain):+.1f} "
            "points."
        )
    if counts["one seed"]:
        start += f" One seed only: {counts['one seed']}."
    if counts["not paired"]:
        start += f" Seeds that do not pair: {counts['not paired']}."
    return start
