"""The example is run, with each optimizer that it offers."""

import runpy
from pathlib import Path

import pytest

pytest.importorskip("sklearn", reason="the example's digits come with scikit-learn")

EXAMPLES = Path(__file__).parents[3] / "examples"
PATH = EXAMPLES / "digits.py"


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw"])
def test_the_example_forgets_less_than_fine_tuning(optimizer, capsys):
    example = runpy.run_path(str(PATH))
    # One epoch is enough to see it, and takes a second.
    example["main"].__globals__["train"].__defaults__ = (1, 0)
    example["main"](optimizer)
    means = [float(line.split()[-1].rstrip("%")) for line in capsys.readouterr().out.splitlines()]
    fine_tuning, projected = means
    assert fine_tuning < 30
    assert projected > fine_tuning + 30


def test_the_example_without_samples_forgets_less(capsys):
    example = runpy.run_path(str(EXAMPLES / "without_samples.py"))
    example["main"].__globals__["TASKS"] = 3
    example["train"].__defaults__ = (None, 2, 0)
    example["main"]()
    _, *rows = capsys.readouterr().out.splitlines()
    fine_tuning, preserved = (float(row.split()[-1].rstrip("%")) for row in rows)
    assert preserved > fine_tuning + 5


def test_the_examples_are_short():
    assert len(PATH.read_text().splitlines()) < 60
    assert len((EXAMPLES / "without_samples.py").read_text().splitlines()) < 80
