"""The example of own data runs, and learns."""

import runpy
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[3] / "examples" / "own_data.py"


def test_the_example_learns_from_arrays_a_frame_and_a_torch_data_set(capsys):
    pytest.importorskip("pandas")
    result = runpy.run_path(str(EXAMPLE))["main"]()
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in lines] == ["arrays", "frame", "images"]
    # Two classes per task, well apart.
    assert result.metrics["acc"] > 0.8
    assert all("seed 0: ACC" in line for line in lines)
