"""The list of mutants fits the code: `make mutants` can apply every one of them."""

import ast
import importlib.util
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
spec = importlib.util.spec_from_file_location("mutants", ROOT / "tests" / "mutants" / "run.py")
run = sys.modules["mutants"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(run)
MUTANTS, TESTS = run.load()


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_changes_one_place(mutant):
    source = (ROOT / "gradproj" / mutant.file).read_text(encoding="utf-8")
    changed = mutant.apply(source)
    assert ast.dump(ast.parse(changed)) != ast.dump(ast.parse(source))


def test_every_mutant_has_its_own_name_and_existing_tests():
    names = [mutant.name for mutant in MUTANTS]
    assert len(set(names)) == len(names)
    for tests in [*TESTS.values(), *(mutant.tests for mutant in MUTANTS)]:
        assert all((ROOT / test.partition("::")[0]).exists() for test in tests)


def test_every_module_has_mutants():
    folder = ROOT / "gradproj"
    modules = {path.relative_to(folder).as_posix() for path in folder.rglob("*.py")}
    without = {f"{part}/__init__.py" for part in ("_arrays", "_methods", "_preserve")}
    without |= {"__main__.py", "_public.py"}  # these only import
    assert modules - {mutant.file for mutant in MUTANTS} == without


def test_a_text_that_is_gone_is_an_error():
    with pytest.raises(ValueError, match=r"its text occurs 0 times in _blocks\.py, not once"):
        run.Mutant("_blocks.py", "name", "gone", "here", "nothing").apply("")
