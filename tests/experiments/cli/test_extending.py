"""The page on extending the experiments is followed word for word, in an empty folder."""

import json
import re
import shlex
import sys
from pathlib import Path

import pytest

from gradproj.experiments import cli

PAGE = Path(__file__).parents[3] / "docs" / "extending.md"
TEXT = PAGE.read_text(encoding="utf-8")
FILES = dict(re.findall(r"```python file=(\S+)\n(.*?)```", TEXT, re.S))
COMMANDS = [shlex.split(line) for line in re.findall(r"```sh\ngradproj (.*?)\n```", TEXT, re.S)]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    for name, code in FILES.items():
        (tmp_path / name).write_text(code, encoding="utf-8")
    yield tmp_path
    for name in FILES:
        sys.modules.pop(name.removesuffix(".py"), None)


def accuracies(folder):
    found = folder.rglob("result.json")
    return [json.loads(path.read_text(encoding="utf-8"))["metrics"]["acc"] for path in found]


def test_the_page_has_a_method_a_data_set_a_benchmark_and_a_figure():
    assert list(FILES) == ["own_methods.py", "own_data.py", "own_benchmarks.py", "own_figures.py"]
    assert [command[0] for command in COMMANDS] == ["run", "run", "figure"]
    # Every block is either a file or a command.
    assert TEXT.count("```") == 2 * (len(FILES) + len(COMMANDS))


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[-1])
def test_a_command_of_the_page_does_what_it_says(command, folder, capsys):
    assert cli.main(command) == 0
    assert len(accuracies(folder)) == (2 if command[0] == "figure" else 1)
    # Guessing one of ten classes, or one of two, would give 0.1 and 0.5.
    assert min(accuracies(folder)) > (0.9 if "own_benchmarks:striped" in command else 0.4)
    assert "was not learned" not in capsys.readouterr().out
    if command[0] == "figure":
        (picture,) = folder.glob("own_figures-rates-*.png")
        assert "| 0.03 |" in picture.with_suffix(".md").read_text(encoding="utf-8")


def test_the_accuracies_on_the_page_are_those_of_its_command(folder):
    with_pull, without = re.findall(r"ACC (?:is )?(\d+\.\d)", TEXT)
    command = COMMANDS[0]
    assert cli.main(command) == 0
    assert cli.main([*command[:-2], "options.decay=0", *command[-1:], "--out", "without"]) == 0
    ((found,), (other,)) = accuracies(folder / "runs"), accuracies(folder / "without")
    # Other processors round differently.
    assert 100 * found == pytest.approx(float(with_pull), abs=3)
    assert 100 * other == pytest.approx(float(without), abs=3)
    assert found > other


def test_the_other_method_of_the_page_runs_too(folder):
    quick = ["--set", "stream.tasks=3", "stream.samples=20", "memory.batch=4"]
    arguments = ["--benchmark", "permuted-digits", "--method", "own_methods:HalfGEM", *quick]
    assert cli.main(["run", *arguments]) == 0
    assert len(accuracies(folder)) == 1
