"""The programs of the pages in docs/integrations and the examples that they refer to are run."""

import re
import runpy
import warnings
from pathlib import Path

import pytest
from support.libraries import need

ROOT = Path(__file__).parent.parent
PAGES = ROOT / "docs" / "integrations"
EXAMPLES = ROOT / "examples"
# Which library a page or an example needs; the others need torch alone.
LIBRARIES = {
    "transformers": "transformers",
    "hugging_face": "transformers",
    "sentence_encoder": "transformers",
}


def blocks(page):
    return re.findall(r"```python\n(.*?)```", page.read_text("utf-8"), re.S)


@pytest.mark.parametrize("name", sorted(path.stem for path in PAGES.glob("*.md")))
def test_the_code_of_a_page_runs(name, tmp_path, monkeypatch):
    need(LIBRARIES.get(name, "torch"))
    monkeypatch.chdir(tmp_path)
    code = "\n".join(blocks(PAGES / f"{name}.md"))
    with warnings.catch_warnings(action="ignore"):  # of the libraries
        exec(compile(code, f"{name}.md", "exec"), {"__name__": name})


def run_example(name, capsys, monkeypatch, **options):
    need(LIBRARIES.get(name, "torch"))
    path = EXAMPLES / f"{name}.py"
    assert len(path.read_text("utf-8").splitlines()) < 100
    monkeypatch.syspath_prepend(str(EXAMPLES))  # as when it runs as a script
    with warnings.catch_warnings(action="ignore"):  # of the libraries
        runpy.run_path(str(path))["main"](**options)
    return capsys.readouterr().out.splitlines()


def percentages(line):
    return [float(share) for share in re.findall(r"([\d.]+)%", line)]


def test_hugging_face(capsys, monkeypatch):
    out = run_example("hugging_face", capsys, monkeypatch)
    plain, projected, preserved = (percentages(line) for line in out[-3:])
    assert min(projected) > 95
    assert projected[0] > plain[0] + 10
    assert preserved[0] > plain[0] + 10


def test_sentence_encoder(capsys, monkeypatch):
    out = run_example("sentence_encoder", capsys, monkeypatch, tiny=True)
    assert [line.split(" ACC")[0].rstrip() for line in out[-5:]] == [
        "encoder frozen",
        "fine-tuning, lr 5e-5",
        "fine-tuning, lr 1e-5",
        "replay, 10 texts per task",
        "preserve, no stored text",
    ]
    kept = [float(line.split()[-1]) for line in out[-5:]]
    assert kept[0] == 1.0
    assert all(0 < share <= 1 for share in kept)
