"""Smoke test of benchmarks/: every script runs with --quick and prints its tables.

Times are not tested: a ratio has to be a finite number > 0, no more.
"""

from __future__ import annotations

import ast
import math
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise, product
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "benchmarks"
EMPTY = "–"


@dataclass(frozen=True)
class Expected:
    """Rows and columns of one table.

    `empty` lists columns and rows that may be empty, for lack of an optional package or because
    they do not apply. `signed` lists columns and rows whose numbers may be 0 or negative.
    """

    rows: tuple[str, ...]
    columns: tuple[str, ...]
    empty: tuple[str, ...] = ()
    signed: tuple[str, ...] = ("spread",)


METHODS = ("Decomposed", "K=5", "GEM", "A-GEM", "S-GEM")
OTHERS = ("DualProj [g; G]", "DualProj G", "UPGrad G", "quadprog")
AVALANCHE = "Avalanche GEM"
PARTS = ("memory batches", "old gradients", "new gradient", "inner products", "solve", "combine")
PARTS += ("optimizer", "remember", "the rest", "step")
SHARES = Expected(PARTS, ("share", "time"), signed=("the rest",))
THREADS = Expected(("T = 2",), ("ratio", "spread", "bare", "step"))
BOTH_LIBRARIES = tuple(product(("NumPy", "torch"), (10, 100)))

# Script to the start of each table's title, in order, and what the table has.
EXPECTED = {
    "adapter": {
        "CPU time of a step": Expected(
            ("MLP T = 2", "ResNet18 T = 2"),
            ("Decomposed", "GEM", "vmap", AVALANCHE, "target", "spread", "bare"),
            empty=("vmap", AVALANCHE),
        ),
    },
    "core": {
        "methods": Expected(
            ("NumPy MLP T = 5", "NumPy MLP T = 20", "torch MLP T = 5", "torch MLP T = 20"),
            (*METHODS, "floor again", "spread", "floor"),
        ),
        "layers": Expected(("NumPy T = 5", "torch T = 5"), ("layerwise", "spread", "whole")),
        "others": Expected(
            ("MLP T = 5", "MLP T = 20"),
            ("Decomposed", "GEM", *OTHERS, "spread", "difference"),
            empty=(*OTHERS, "difference"),
        ),
        "memory": Expected(("MLP T = 5", "MLP T = 20"), METHODS),
        "targets": Expected(
            tuple(
                f"{method}, {library}, MLP, T = 20"
                for method in ("Decomposed", "GEM", "A-GEM")
                for library in ("NumPy", "torch")
            ),
            ("target", "measured", "result"),
        ),
    },
    "factored": {
        "A step over its bare": Expected(
            ("MLP 784-2000-2000-10",),
            ("ratio", "target", "spread", "bare", "extra MB", "target MB"),
            signed=("spread", "extra MB"),
        ),
    },
    "precision": {
        "Residual": Expected(
            ("trained network", "specific part × 0.1", "specific part × 0.001"),
            ("condition", "one product", "blocked", "precise"),
        ),
    },
    "preserve": {
        "CPU time of a step": Expected(
            ("MLP T = 2", "ResNet18 T = 2"),
            ("Preserver", "rank=64", "replay", "Projector", "target", "spread", "plain"),
        ),
    },
    "preserve_core": {
        "apply": Expected(
            tuple(f"{library} 101 inputs, {rows} rows" for library, rows in BOTH_LIBRARIES),
            ("dense", "in place", "rank 32", "basis", "spread", "product"),
        ),
        "update": Expected(
            tuple(f"{library} 101 inputs, {rows} rows" for library, rows in BOTH_LIBRARIES),
            ("full", "rank 32", "diagonal", "spread", "product"),
        ),
        "prepare": Expected(
            ("NumPy 101 inputs", "torch 101 inputs"),
            ("soft", "projection", "rank 32", "input_basis", "spread", "inverse"),
        ),
    },
    "preserve_when": {
        "Mean accuracy": Expected(
            ("SGD", "SGD, momentum 0.9", "Adam"), ("fine-tuning", "gradient", "step")
        ),
    },
    "runs": {
        "CPU time of training": Expected(
            ("gradients", "ours", "GEM", AVALANCHE), ("ratio", "time"), empty=(AVALANCHE,)
        ),
    },
    "soak": {"240 steps": Expected(("T = 0", "T = 1", "T = 2"), ("ratio",))},
    "steps": {"permuted-digits": SHARES, "split-digits": SHARES},
    "threads": {"one thread": THREADS, "default threads": THREADS},
}


def parsed() -> dict[str, ast.Module]:
    """Return the syntax tree of each module in benchmarks/, by name."""
    return {p.stem: ast.parse(p.read_text(encoding="utf-8")) for p in sorted(FOLDER.glob("*.py"))}


def scripts() -> list[str]:
    """Return the modules in benchmarks/ with a function `main`; the others are helpers."""
    return [
        name
        for name, tree in parsed().items()
        if any(isinstance(node, ast.FunctionDef) and node.name == "main" for node in tree.body)
    ]


def private_names(tree: ast.Module) -> Iterator[str]:
    """Return the private names that a module imports, or reads from anything but `self`."""
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [alias.name for alias in node.names]
            names += [getattr(node, "module", None) or ""]
        elif isinstance(node, ast.Attribute):
            own = isinstance(node.value, ast.Name) and node.value.id == "self"
            names = [] if own else [node.attr]
        for name in names:
            if re.search(r"(^|\.)_(?!_)", name):
                yield name


def run(script: str, *arguments: str) -> str:
    """Run a script and return what it prints."""
    done = subprocess.run(
        [sys.executable, str(FOLDER / f"{script}.py"), *arguments],
        capture_output=True, encoding="utf-8", check=False, timeout=600,
        env={**os.environ, "PYTHONIOENCODING": "utf-8"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]


def tables(text: str) -> Iterator[tuple[str, list[str], dict[str, list[str]]]]:
    """Return title, columns and rows of each Markdown table in a text."""
    blocks = [block.splitlines() for block in re.split(r"\n\s*\n", text.strip())]
    for title, lines in pairwise(blocks):
        if lines[0].startswith("|"):
            (_, *columns), _, *rows = map(cells, lines)
            yield title[-1], columns, {label: values for label, *values in rows}


def check(rows: dict[str, list[str]], columns: list[str], expected: Expected) -> None:
    """Check that each cell holds a number as expected."""
    for label, values in rows.items():
        for column, value in zip(columns, values, strict=True):
            place = {label, column}
            if value == EMPTY:
                assert place & set(expected.empty), f"{label}, {column} is empty"
            elif column == "result":
                assert value in ("ok", "missed")
            else:
                number = float(value.split()[0].removesuffix("%"))
                assert math.isfinite(number), (label, column, value)
                assert number > 0 or place & set(expected.signed), (label, column, value)


def test_every_script_is_covered():
    assert scripts() == sorted(EXPECTED)


def test_helpers_do_not_run_anything():
    for path in FOLDER.glob("*.py"):
        if "__main__" in path.read_text(encoding="utf-8"):
            assert path.stem in scripts(), f"{path.name}: put the code of the script into main()"


@pytest.mark.parametrize("module", sorted(parsed()))
def test_only_public_names_are_used(module):
    assert list(private_names(parsed()[module])) == []


def test_make_runs_every_script():
    command = re.search(r"grep -l '(.*)' benchmarks/\*\.py", (ROOT / "Makefile").read_text("utf-8"))
    assert command is not None
    chosen = [
        path.stem
        for path in sorted(FOLDER.glob("*.py"))
        if re.search(command[1], path.read_text("utf-8"), re.M)
    ]
    assert chosen == scripts()


@pytest.mark.slow
@pytest.mark.parametrize("script", sorted(EXPECTED))
def test_quick(script):
    pytest.importorskip("torch", reason="torch is not installed")
    pytest.importorskip("sklearn", reason="the experiments extra is not installed")
    found = list(tables(run(script, "--quick")))
    assert len(found) == len(EXPECTED[script])
    for (title, columns, rows), (start, expected) in zip(
        found, EXPECTED[script].items(), strict=True
    ):
        assert title.startswith(start)
        assert columns == list(expected.columns)
        if start == "targets":  # the rows of other libraries are there only if they are installed
            assert list(rows)[: len(expected.rows)] == list(expected.rows)
        else:
            assert list(rows) == list(expected.rows)
        check(rows, columns, expected)


@pytest.mark.slow
def test_one_table_of_the_core():
    pytest.importorskip("torch", reason="torch is not installed")
    titles = [title for title, _, _ in tables(run("core", "--quick", "--table", "memory"))]
    assert len(titles) == 1
    assert titles[0].startswith("memory")
