"""What the README says of runs from Python is run."""

import re
from pathlib import Path
from textwrap import dedent

README = Path(__file__).parents[3] / "README.md"


def test_the_lines_from_python_print_an_accuracy(tmp_path, monkeypatch, capsys):
    text = README.read_text(encoding="utf-8")
    (block,) = re.findall(r"From Python:\n\n((?:    .*\n|\n)+)", text)
    monkeypatch.chdir(tmp_path)
    exec(compile(dedent(block), "README.md", "exec"), {})
    assert 0.3 < float(capsys.readouterr().out) <= 1
