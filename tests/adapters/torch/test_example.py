"""The example is run, with each optimizer that it offers."""

import runpy
from pathlib import Path

import pytest

pytest.importorskip("sklearn", reason="the example's digits come with scikit-learn")

PATH = Path(__file__).parents[3] / "examples" / "digits.py"


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


def test_the_example_is_short():
    assert len(PATH.read_text().splitlines()) < 60
