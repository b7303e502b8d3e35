"""The benchmarks, networks and methods that `gradproj list` shows, read from their source files.

Importing them takes seconds, because they need torch. Reading the syntax trees takes a tenth of
that. A test compares the catalogue with the imported objects.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

__all__ = ["Entry", "Source", "benchmarks", "methods", "networks"]

EXPERIMENTS = Path(str(files("gradproj.experiments")))


@dataclass(frozen=True)
class Entry:
    """A method.

    Attributes
    ----------
    name : str
    scenarios : tuple of str
    summary : str
        The first line of its docstring.
    about : tuple of str
        The paragraphs below it: the equations, and what is as published.
    options : tuple of str
        The names of its options.
    """

    name: str
    scenarios: tuple[str, ...]
    summary: str
    about: tuple[str, ...]
    options: tuple[str, ...]


@dataclass(frozen=True)
class Source:
    """A benchmark: how its tasks are made, from which data set, and with which options."""

    kind: str
    dataset: str
    options: Mapping[str, Any]


@cache
def benchmarks() -> dict[str, Source]:
    """Return the benchmarks by name.

    Examples
    --------
    >>> benchmarks()["split-mnist"]
    Source(kind='split', dataset='mnist', options={'tasks': 5})
    """
    table = _table(EXPERIMENTS / "streams" / "benchmarks.py", "BENCHMARKS")
    found = {}
    for name, call in table.items():
        assert isinstance(call, ast.Call)
        kind, dataset, *options = map(ast.literal_eval, call.args)
        found[name] = Source(kind, dataset, options[0] if options else {})
    return found


def networks() -> list[str]:
    """Return the names of the networks.

    Examples
    --------
    >>> "mlp" in networks()
    True
    """
    return list(_table(EXPERIMENTS / "networks" / "__init__.py", "NETWORKS"))


@cache
def methods() -> list[Entry]:
    """Return the methods, sorted by name.

    Examples
    --------
    >>> next(each.options for each in methods() if each.name == "tinyer")
    ('batch', 'policy')
    """
    classes = _classes(EXPERIMENTS / "methods")
    found = []
    for each in classes:
        if "name" not in each.values:
            continue  # It is a base class.
        lineage = _lineage(each, classes)
        name, scenarios, options = (
            next((c, c.values[key]) for c in lineage if key in c.values)
            for key in ("name", "scenarios", "Options")
        )
        summary, *about = (ast.get_docstring(each.node) or "").split("\n\n")
        found.append(
            Entry(
                name=ast.literal_eval(name[1]),
                scenarios=ast.literal_eval(scenarios[1]),
                summary=summary,
                about=tuple(" ".join(paragraph.split()) for paragraph in about),
                options=_fields(_refer(options[1], options[0].module, classes), classes),
            )
        )
    return sorted(found, key=lambda entry: entry.name)


@dataclass(frozen=True)
class _Class:
    module: str
    node: ast.ClassDef

    @property
    def annotated(self) -> list[str]:
        return [n.target.id for n in self.node.body
                if isinstance(n, ast.AnnAssign) and isinstance(n.target, ast.Name)]  # fmt: skip

    @property
    def values(self) -> dict[str, ast.expr]:
        return _assigned(self.node.body)


def _classes(folder: Path) -> list[_Class]:
    return [
        _Class(path.stem, node)
        for path in sorted(folder.rglob("*.py"))
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.ClassDef)
    ]


def _refer(name: ast.expr, module: str, classes: list[_Class]) -> _Class | None:
    """Return the class that `name` stands for in `module`; None if it is not of this package."""
    if isinstance(name, ast.Attribute) and isinstance(name.value, ast.Name):
        module, text = name.value.id, name.attr
    else:
        text = ast.unparse(name)
    known = [each for each in classes if each.node.name == text]
    # Each module has its own `Options`; all other names are unique.
    return next((each for each in known if each.module == module), known[0] if known else None)


def _lineage(first: _Class, classes: list[_Class]) -> list[_Class]:
    """Return a class and its bases, the nearest first."""
    lineage = [first]
    for each in lineage:  # It grows meanwhile.
        bases = (_refer(base, each.module, classes) for base in each.node.bases)
        lineage += [base for base in bases if base is not None]
    return lineage


def _fields(options: _Class | None, classes: list[_Class]) -> tuple[str, ...]:
    lineage = [] if options is None else _lineage(options, classes)
    return tuple(dict.fromkeys(name for each in reversed(lineage) for name in each.annotated))


def _table(path: Path, name: str) -> dict[str, ast.expr]:
    value = _assigned(ast.parse(path.read_text(encoding="utf-8")).body)[name]
    assert isinstance(value, ast.Dict)
    keys = [ast.literal_eval(key) for key in value.keys if key is not None]
    return dict(zip(keys, value.values, strict=True))


def _assigned(body: list[ast.stmt]) -> dict[str, ast.expr]:
    found = {}
    for node in body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                if isinstance(target, ast.Name):
                    found[target.id] = node.value
    return found
