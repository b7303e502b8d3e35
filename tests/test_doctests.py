"""The examples in the docstrings of every module are run."""

import doctest
import importlib
import re
from pathlib import Path

import pytest
from support.libraries import need

ROOT = Path(__file__).parent.parent
OPTIONS = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS


def with_examples(folder: str, package: str) -> list[str]:
    """The modules of a folder whose source holds a doctest."""
    names = []
    for path in sorted((ROOT / folder).rglob("*.py")):
        if ">>> " in path.read_text(encoding="utf-8"):
            parts = path.relative_to(ROOT / folder).with_suffix("").parts
            names.append(".".join([package, *(part for part in parts if part != "__init__")]))
    return names


def run(module: str) -> None:
    result = doctest.testmod(importlib.import_module(module), optionflags=OPTIONS)
    assert result.attempted > 0
    assert result.failed == 0


@pytest.mark.parametrize("module", with_examples("gradproj", "gradproj"))
def test_core(module):
    run(module)


@pytest.mark.parametrize(
    "module",
    with_examples("adapters", "gradproj.adapters")
    + with_examples("experiments", "gradproj.experiments"),
)
def test_torch(module):
    pytest.importorskip("torch", reason="torch is not installed")
    library = re.match(r"gradproj\.adapters\.(?!torch)(\w+)", module)
    if library:
        need(library[1])
    run(module)
