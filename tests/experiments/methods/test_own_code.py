"""Methods and networks of people's own code, named as `module:object`."""

import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import gradproj as gp
from gradproj.experiments import cli, methods, networks
from gradproj.experiments.common import registry
from gradproj.experiments.common.errors import ConfigError
from gradproj.experiments.networks.normalise import Normalise
from gradproj.experiments.reports.collect import collect
from gradproj.experiments.reports.content import build

EXAMPLE = Path(__file__).parents[3] / "examples" / "own_method.py"
QUICK = ["stream.samples=20", "stream.tasks=3", "memory.batch=5"]

NETWORK = """
from torch import nn

def open_to_all(outputs, input_shape, **options):
    return shallow(outputs, input_shape, **options)

def shallow(outputs, input_shape, width=4):
    pixels = input_shape[0] * input_shape[1] * input_shape[2]
    return nn.Sequential(nn.Flatten(), nn.Linear(pixels, width), nn.ReLU(), nn.Linear(width, outputs))
"""  # noqa: E501

METHOD = """
from dataclasses import dataclass

from gradproj.experiments.methods.learner import Learner

@dataclass(frozen=True)
class Options:
    times: int = 1

class Careful(Learner):
    name = "careful"
    Options = Options

    def observe(self, task, *batch):
        from own_helper import repeat
        return repeat(self.options.times, lambda: super(Careful, self).observe(task, *batch))
"""
PLAIN = """
from gradproj.experiments.methods.learner import Learner

class Plain(Learner):
    class Options:
        times = 1
"""
HELPER = """
def repeat(times, act):
    for _ in range(times):
        step = act()
    return step
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A folder with the example and a network, from which the command is called."""
    folder = tmp_path / "mine"
    folder.mkdir()
    shutil.copy(EXAMPLE, folder)
    (folder / "own_network.py").write_text(NETWORK)
    (folder / "own_plain.py").write_text(PLAIN)
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", list(sys.path))  # which loading adds to
    return folder


def test_a_method_and_a_network_of_ones_own_run_in_several_processes(own):
    arguments = ["--benchmark", "permuted-digits", "--method", "own_method:PCGrad"]
    arguments += ["--seeds", "0", "1", "--jobs", "2", "--set", *QUICK]
    arguments += ["network=own_network:shallow", "network_options.width=3"]
    assert cli.main(["run", *arguments]) == 0
    results = sorted((own / "runs").rglob("result.json"))
    assert len(results) == 2
    assert {json.loads(path.read_text())["method"] for path in results} == {"own_method:PCGrad"}


def test_a_report_runs_nobodys_code(own, monkeypatch):
    arguments = ["--benchmark", "permuted-digits", "--method", "own_method:PCGrad"]
    assert cli.main(["run", *arguments, "--set", *QUICK]) == 0

    def refuse(*_):
        raise AssertionError("a report has loaded code that a run named")

    monkeypatch.setattr("gradproj.experiments.methods.registry.load_object", refuse)
    monkeypatch.setattr("gradproj.experiments.common.registry.load_object", refuse)
    (section,) = build(collect([own / "runs"]), {}).sections
    (line,) = section.tables[0].lines
    # And not, say, the size of the memory, which is that of all presets of the benchmark.
    changes = "memory.batch=5, stream.samples=20, stream.tasks=3"
    assert line.cells[0] == f"own_method:PCGrad, {changes}"
    assert cli.main(["report", str(own / "runs"), "--results", str(own / "kept")]) == 0
    assert len(list((own / "kept").rglob("seed-*.json"))) == 1
    assert "--method own_method:PCGrad" in line.cells[-1]


def test_the_example_never_points_against_the_task_it_looked_at_last():
    from importlib.util import module_from_spec, spec_from_file_location

    spec = spec_from_file_location("own_method", EXAMPLE)
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    rng = np.random.default_rng(0)
    G = rng.standard_normal((4, 30))
    g = -G.sum(0)
    w = gp.project(g, G, module.Surgery())
    assert G[-1] @ w >= -1e-12
    assert np.linalg.norm(w) < np.linalg.norm(g)


@pytest.mark.usefixtures("own")
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nowhere:PCGrad", "method 'nowhere:PCGrad' cannot be loaded: No module named 'nowhere'"),
        ("own_method:Other", "cannot be loaded: module 'own_method' has no attribute 'Other'"),
        ("own_method:Surgery", "'own_method:Surgery' is not a subclass of gradproj.exp"),
        (":x", "method ':x' cannot be loaded"),
        ("./own_method:PCGrad", "'./own_method' is not the name of a module; write module:object"),
        ("own_plain:Plain", "'own_plain:Plain': Options must be a dataclass; decorate it with"),
    ],
)
def test_what_cannot_be_used_is_refused(name, message):
    with pytest.raises(ConfigError, match=message):
        methods.find(name)


def test_the_folder_is_put_on_the_path_once(own):
    for _ in range(2):
        registry.load_object("own_network:shallow", "network")
    assert sys.path.count(str(own)) == 1


@pytest.mark.parametrize("seeds", [["0"], ["0", "1"]])
def test_a_method_may_have_options_and_import_a_neighbour_while_it_runs(own, seeds):
    (own / "own_options.py").write_text(METHOD)
    (own / "own_helper.py").write_text(HELPER)
    arguments = ["--benchmark", "permuted-digits", "--method", "own_options:Careful"]
    arguments += ["--seeds", *seeds, "--jobs", "2", "--set", *QUICK, "options.times=2"]
    assert cli.main(["run", *arguments]) == 0
    assert len(list((own / "runs").rglob("result.json"))) == len(seeds)


@pytest.mark.parametrize(
    ("preset", "body", "message"),
    [
        ("permuted-digits/single", "None", "returned a NoneType; return a torch.nn.Module"),
        ("class-digits/ours", "nn.Linear(1, outputs)", "makes a Linear; where the task is unknown"),
        ("class-digits/lucir", "nn.Linear(1, outputs)", "makes a Linear; where the task is unkno"),
    ],
)
def test_a_network_that_will_not_do_is_refused_before_training(own, preset, body, message, capsys):
    source = f"from torch import nn\ndef make(outputs, input_shape, head=''):\n    return {body}\n"
    module = f"bad_{preset.replace('/', '_').replace('-', '_')}"  # each is imported but once
    (own / f"{module}.py").write_text(source)
    assert cli.main(["run", preset, "--set", f"network={module}:make"]) == 2
    assert message in " ".join(capsys.readouterr().out.split())


@pytest.mark.usefixtures("own")
def test_a_network_may_take_any_options():
    network = networks.build("own_network:open_to_all", 3, (1, 2, 2), width=7)
    assert network[1].out_features == 7


@pytest.mark.usefixtures("own")
def test_a_plain_network_can_be_given_standardised_pixels():
    plain, made = (
        networks.build("own_network:shallow", 3, (3, 2, 2), **options)
        for options in ({}, {"normalise": "cifar100"})
    )
    x = torch.rand(5, 3, 2, 2)
    assert torch.equal(made(x), plain(Normalise("cifar100", 3)(x)))
