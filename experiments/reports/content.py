"""The content of a report: tables per benchmark, missing runs and unexplained differences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from gradproj.experiments.reports import paper
from gradproj.experiments.reports.answer import answer
from gradproj.experiments.reports.collect import Collection
from gradproj.experiments.reports.paper import PaperTable
from gradproj.experiments.reports.rows import Row, group
from gradproj.experiments.reports.tables.averages import averaged_table
from gradproj.experiments.reports.tables.controls import control_table, overview_tables
from gradproj.experiments.reports.tables.published import other_table, paper_table
from gradproj.experiments.reports.tables.sweeps import sweep_tables
from gradproj.experiments.reports.tables.table import STATUS, Line, Table

__all__ = ["Report", "Section", "build"]


@dataclass(frozen=True)
class Section:
    """One benchmark in one scenario."""

    benchmark: str
    scenario: str
    tables: tuple[Table, ...]
    missing: tuple[str, ...]
    unfinished: tuple[str, ...]
    not_learned: tuple[str, ...]
    unexplained: tuple[str, ...]

    @property
    def title(self) -> str:
        """Name of the benchmark, with the scenario."""
        return f"{self.benchmark} ({self.scenario}-incremental)"

    @property
    def anchor(self) -> str:
        """The name that links to this section use."""
        return f"{self.benchmark}-{self.scenario}".replace(":", "-")


@dataclass(frozen=True)
class Report:
    """A report.

    Attributes
    ----------
    answer : tuple of str
        The effect of the projection in a few sentences.
    overview : tuple of Table
        The main methods beside their controls, on all benchmarks.
    sections : tuple of Section
        One per benchmark and scenario.
    problems : tuple of str
        Files that could not be read, with the reason.
    made_with : tuple of str
        Versions and processors behind the runs, with the number of runs of each.
    """

    answer: tuple[str, ...]
    overview: tuple[Table, ...]
    sections: tuple[Section, ...]
    problems: tuple[str, ...]
    made_with: tuple[str, ...]

    @property
    def compares(self) -> bool:
        """Whether any line is judged by a number of the paper."""
        return any(self.count(status) for status in STATUS)

    def count(self, status: str) -> int:
        """Count the lines of a status."""
        lines = (line for s in self.sections for table in s.tables for line in table.lines)
        return sum(line.status == status for line in lines)


def build(collection: Collection, notes: Mapping[str, str], *, beside_paper: bool = True) -> Report:
    """Make the report of a collection of runs.

    Parameters
    ----------
    collection : Collection
    notes : mapping
        Remarks on rows, by name, as `read_notes` returns them.
    beside_paper : bool
        Whether to compare with the paper. Runs made to choose values are not compared.
    """
    rows = group(collection.runs)
    sections = []
    for benchmark in dict.fromkeys(row.benchmark for row in rows):
        of_it = [row for row in rows if row.benchmark == benchmark]
        published = paper.tables() if beside_paper else ()
        sections.append(_section(*benchmark, of_it, notes, published))
    used = Counter(_environment(run.environment) for run in collection.runs if run.finished)
    made_with = [f"{words} (runs: {number})" for words, number in sorted(used.items())]
    overview = tuple(overview_tables(rows)) if beside_paper else ()
    return Report(
        answer(overview), overview, tuple(sections), collection.problems, tuple(made_with)
    )


def _section(
    benchmark: str,
    scenario: str,
    rows: Sequence[Row],
    notes: Mapping[str, str],
    published: Iterable[PaperTable],
) -> Section:
    control = control_table(rows)
    tables: list[Table] = [control] if control is not None else []
    missing = []
    for printed in published:
        if benchmark not in printed.cells:
            continue
        table = paper_table(printed, benchmark, rows, notes)
        if table is None:
            missing.append(f"{printed.title}: no run of any of its cells")
            continue
        tables.append(table)
        absent = [line.cells[0] for line in table.lines if line.row is None]
        if absent:
            missing.append(f"{printed.title}: {'; '.join(absent)}")
    used = [line.row for t in tables if t is not control for line in t.lines if line.row]
    extra = (other_table(rows, used, notes), averaged_table(rows))
    tables += [*sweep_tables(rows), *(table for table in extra if table is not None)]
    unfinished = [
        f"{row.name}, seed {run.seed}: {run.progress}" for row in rows for run in row.unfinished
    ]
    not_learned = [
        f"{row.name}, seed {run.seed}: {_tasks(run.at_chance)}"
        for row in rows
        for run in row.finished
        if run.at_chance
    ]
    unexplained = [
        f"{table.title}: {line.cells[0]}"
        for table in tables
        for line in table.lines
        if _needs_reason(line)
    ]
    return Section(
        benchmark,
        scenario,
        tuple(tables),
        tuple(missing),
        tuple(unfinished),
        tuple(not_learned),
        tuple(unexplained),
    )


def _tasks(indices: Sequence[int]) -> str:
    """Count tasks from 1, as the messages of a run do."""
    return ("task " if len(indices) == 1 else "tasks ") + ", ".join(str(i + 1) for i in indices)


def _needs_reason(line: Line) -> bool:
    return line.status in ("above", "below") and not line.note


def _environment(environment: Mapping[str, object]) -> str:
    versions = environment.get("versions")
    known = versions if isinstance(versions, dict) else {}
    words = [f"{name} {version}" for name, version in known.items() if version]
    for key, name in (("python", "Python"), ("processor", "processor")):
        if environment.get(key):
            words.append(f"{name} {environment[key]}")
    if environment.get("flags"):
        words.append(f"features {environment['flags']}")
    return ", ".join(words) or "versions not recorded"
