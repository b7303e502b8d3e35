"""The README: its length, its programs and their agreement with the command line."""

import json
import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```(?:\n\n```text output\n(.*?)```)?", README, re.S)


def test_the_readme_is_short():
    assert len(README.splitlines()) <= 150


def test_pictures_are_shown_outside_the_repository():
    """PyPI shows the README too, where relative addresses of pictures lead nowhere."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    raw = project["urls"]["Homepage"].replace("github.com", "raw.githubusercontent.com")
    pictures = re.findall(r"!\[[^\]]+\]\((\S+)\)", README)
    assert len(pictures) == 1
    for picture in pictures:
        name = picture.removeprefix(f"{raw}/main/")
        assert name != picture
        assert (ROOT / name).exists()


def test_links_lead_to_files_of_the_repository():
    """They are absolute, because relative ones lead nowhere on PyPI."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    home = f"{project['urls']['Homepage']}/blob/main/"
    targets = re.findall(r"(?<!!)\[[^\]]+\]\((\S+)\)", README)
    assert [target for target in targets if not target.startswith("https://")] == []
    names = [target.removeprefix(home) for target in targets if target.startswith(home)]
    assert len(names) > 5
    assert [name for name in names if not (ROOT / name).exists()] == []


@pytest.mark.parametrize(("code", "output"), [block for block in BLOCKS if block[1]])
def test_programs_print_what_the_readme_says(code, output, capsys):
    if "torch" in code:
        pytest.importorskip("torch", reason="torch is not installed")
    exec(compile(code, "README.md", "exec"), {})
    assert capsys.readouterr().out == output


def test_a_run_from_python_equals_the_command(tmp_path, monkeypatch, capsys):
    """To the last bit, the whole accuracy matrix included."""
    pytest.importorskip("torch", reason="torch is not installed")
    from gradproj.experiments import cli

    (code,) = (code for code, output in BLOCKS if not output)
    (command,) = re.findall(r"same result: `gradproj (.*?)`", README)
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    exec(compile(code, "README.md", "exec"), names)
    printed = capsys.readouterr().out.split()[-1]
    assert cli.main([*command.split(), "--out", "runs/command"]) == 0
    (path,) = Path("runs/command").rglob("result.json")
    theirs = json.loads(path.read_text(encoding="utf-8"))
    assert names["result"].accuracy_matrix.tolist() == theirs["accuracy_matrix"]
    assert float(printed) == theirs["metrics"]["acc"]
