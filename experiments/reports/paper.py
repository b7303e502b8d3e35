"""The paper's numbers, read from `paper.toml`."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

__all__ = ["Cell", "PaperTable", "label", "overview", "seconds", "tables"]


@dataclass(frozen=True)
class Cell:
    """One number of the paper.

    Attributes
    ----------
    acc : float
        Percent.
    spread : float or None
        The deviation that the paper prints beside it.
    judge : float or None
        The standard deviation by which differences are judged; None if it is not known.
    bwt : float or None
        Backward transfer, a fraction, divided by the number of tasks.
    note : str
        A remark on the number, for its readers.
    """

    acc: float
    spread: float | None
    judge: float | None
    bwt: float | None = None
    note: str = ""


@dataclass(frozen=True)
class PaperTable:
    """One table of the paper: its cells by benchmark and by the preset that repeats them.

    `labels` are those of rows that the table names differently.
    """

    name: str
    title: str
    about: str
    metric: str
    cells: Mapping[str, Mapping[str, Cell]]
    labels: Mapping[str, str]


@cache
def tables() -> tuple[PaperTable, ...]:
    """Return all tables, in the paper's order.

    Examples
    --------
    >>> main = tables()[0]
    >>> main.title, main.cells["mnist-permutations"]["ours"].acc
    ('Main table, 1 epoch', 82.9)
    """
    found = _content()["tables"]
    main = found["main"]["cells"]
    return tuple(
        PaperTable(
            name,
            table["title"],
            table.get("about", ""),
            table.get("metric", "acc"),
            {
                benchmark: {
                    entry: _cell(
                        cell,
                        main.get(benchmark, {}).get(table.get("spread"), {}),
                        _content()["notes"],
                    )
                    for entry, cell in cells.items()
                }
                for benchmark, cells in table["cells"].items()
            },
            table.get("labels", {}),
        )
        for name, table in found.items()
    )


def _cell(cell: Mapping[str, Any], main: Mapping[str, Any], notes: Mapping[str, str]) -> Cell:
    judge = cell.get("std", main.get("std")) if cell.get("judge", True) else None
    note = notes[cell["note"]] if "note" in cell else ""
    return Cell(cell["acc"], cell.get("std"), judge, cell.get("bwt"), note)


def label(entry: str) -> str:
    """Return the usual name of a preset's method.

    Examples
    --------
    >>> label("agem"), label("gem-3ep"), label("ours-printed")
    ('A-GEM', 'GEM, 3 epochs', 'Ours, as printed (strength 0)')
    """
    labels: dict[str, str] = _content()["labels"]
    for ending, words in (("-3ep", ", 3 epochs"), ("-printed", ", as printed (strength 0)")):
        if entry.endswith(ending):
            base = entry.removesuffix(ending)
            name = labels.get(base, base)
            return (name.removesuffix(" with replay") if ending == "-printed" else name) + words
    return labels.get(entry, entry)


def overview() -> tuple[str, ...]:
    """Return the methods that the overview compares with their controls."""
    return tuple(_content()["overview"])


def seconds(benchmark: str) -> Mapping[str, float]:
    """Return the paper's running times by entry; empty if it gives none for the benchmark."""
    times: dict[str, float] = _content()["seconds"].get(benchmark, {})
    return times


@cache
def _content() -> dict[str, Any]:
    file = resources.files(__package__) / "paper.toml"
    return tomllib.loads(file.read_text(encoding="utf-8"))
