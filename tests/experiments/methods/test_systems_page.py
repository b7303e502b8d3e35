"""The page that says how far each system follows its publication."""

import re
from pathlib import Path

import pytest

from gradproj.experiments import methods
from gradproj.experiments.runs import presets

PAGE = Path(__file__).parents[3] / "docs" / "systems.md"
ENTRIES = {name.partition("/")[2] for name in presets.available()}


@pytest.fixture(scope="module")
def tables():
    """The first cell and the other cells of each row, by the heading above the table."""
    if not PAGE.exists():
        pytest.skip("the documentation is not installed")
    found, heading = {}, ""
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        if line.startswith("#"):
            heading = line.lstrip("# ")
        elif line.startswith("| `"):
            first, *others = (cell.strip() for cell in line.strip("|").split(" | "))
            names = re.findall(r"`([^`]+)`", first)
            found.setdefault(heading, []).append((names, others))
    return found


def test_the_tables_list_every_registered_method_once(tables):
    systems = [row for heading, rows in tables.items() if "Presets" not in heading for row in rows]
    listed = [name for names, _ in systems for name in names]
    assert sorted(listed) == sorted(methods.available())
    assert all(len(others) == 3 and all(others) for _, others in systems)


def test_every_preset_on_the_page_exists(tables):
    (rows,) = (rows for heading, rows in tables.items() if "Presets" in heading)
    names = [name for names, _ in rows for name in names]
    # Named forms that users look for.
    assert {"gem-released", "agem-sum", "ours-part-margin", "eeil-gd", "muc-exemplars"} <= {*names}
    for name in names:
        assert name in (presets.available() if "/" in name else ENTRIES), name


@pytest.mark.parametrize("name", sorted(methods.available()))
def test_each_docstring_says_how_far_it_follows_a_publication(name):
    text = " ".join((methods.find(name).__doc__ or "").split())
    assert re.search("published|released|GD's experiments|method of this project", text), text
