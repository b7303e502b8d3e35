"""Benchmarks of people's own code, named as `module:function`."""

import json
import shutil
import sys
from pathlib import Path

import pytest

from gradproj.experiments import cli
from gradproj.experiments.reports.collect import collect
from gradproj.experiments.reports.content import build
from gradproj.experiments.runs import presets
from gradproj.experiments.runs.resolve import resolve
from gradproj.experiments.runs.runner import Interrupted, run
from gradproj.experiments.streams import benchmarks

EXAMPLES = Path(__file__).parents[3] / "examples"
PARITY = "own_benchmark:parity"

WRONG = """
def nothing(seed):
    return None

def seedless(tasks=5):
    return None

def greedy(seed, images):
    return None

constant = 3
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A folder with the examples, from which the command is called."""
    folder = tmp_path / "mine"
    folder.mkdir()
    for name in ("own_benchmark.py", "own_method.py"):
        shutil.copy(EXAMPLES / name, folder)
    (folder / "own_wrong.py").write_text(WRONG)
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", list(sys.path))  # which loading adds to
    return folder


@pytest.mark.parametrize("method", ["single", "own_method:PCGrad"])
def test_the_example_runs_and_is_reported_without_running_anybodys_code(own, method, monkeypatch):
    command = ["run", "--benchmark", PARITY, "--method", method, "--seeds", "0", "1"]
    assert cli.main([*command, "--jobs", "2", "--set", "stream.samples=50"]) == 0
    results = sorted((own / "runs" / "own_benchmark-parity").rglob("result.json"))
    one, two = (json.loads(path.read_text()) for path in results)
    assert (one["benchmark"], one["scenario"], one["method"]) == (PARITY, "domain", method)
    assert one["accuracy_matrix"] != two["accuracy_matrix"]

    def refuse(*_):
        raise AssertionError("a report has loaded code that a run named")

    monkeypatch.setattr(benchmarks, "load_object", refuse)
    (section,) = build(collect([own / "runs"]), {}).sections
    (line,) = section.tables[0].lines
    assert section.title == f"{PARITY} (domain-incremental)"
    assert line.cells[0].endswith(", stream.samples=50")
    assert f"--benchmark {PARITY} --method {method} --seeds 0 1" in line.cells[-1]
    assert cli.main(["report", str(own / "runs"), "--results", str(own / "kept")]) == 0
    assert len(list((own / "kept").rglob("seed-*.json"))) == 2


@pytest.mark.usefixtures("own")
def test_it_is_resumed_bit_for_bit(tmp_path):
    config = presets.compose(PARITY, "gem", {"stream": {"samples": 50}})
    assert config.network == "mlp"
    assert run(config, tmp_path / "whole")
    with pytest.raises(Interrupted):
        run(config, tmp_path / "cut", should_stop=lambda: True)
    (found,) = collect([tmp_path / "cut"]).runs
    assert (found.finished, found.scenario) == (False, "unknown")
    assert run(config, tmp_path / "cut", resume=True)
    whole, cut = (json.loads((tmp_path / n / "result.json").read_text()) for n in ("whole", "cut"))
    assert whole["accuracy_matrix"] == cut["accuracy_matrix"]


@pytest.mark.usefixtures("own")
@pytest.mark.parametrize(
    ("name", "stream", "message"),
    [
        ("nowhere:parity", {}, "benchmark 'nowhere:parity' cannot be loaded: No module named"),
        ("own_benchmark:odd", {}, "module 'own_benchmark' has no attribute 'odd'"),
        (PARITY, {"task": 3}, "unexpected keyword argument 'task'; it must take `seed` and what"),
        ("own_wrong:seedless", {}, "got an unexpected keyword argument 'seed'; it must take"),
        ("own_wrong:greedy", {}, "missing a required argument: 'images'"),
        ("own_wrong:constant", {}, "3 is not a callable object"),
    ],
)
def test_what_cannot_be_called_is_named(name, stream, message):
    with pytest.raises(ValueError, match=message):
        resolve({"benchmark": name, "method": "single", "stream": stream})


@pytest.mark.usefixtures("own")
def test_what_is_no_stream_is_named(tmp_path):
    config = resolve({"benchmark": "own_wrong:nothing", "method": "single"})
    message = "'own_wrong:nothing' returned a NoneType; return a gradproj.exp"
    with pytest.raises(ValueError, match=message):
        run(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()
