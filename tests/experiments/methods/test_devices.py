"""Resuming on another device: restored tensors are on the device of the network."""

import pytest
import torch
from support.toy import toy_learner, train

from gradproj.adapters.torch import EpisodicMemory
from gradproj.experiments import methods
from gradproj.experiments.methods.setup import Setup
from gradproj.experiments.runs.resolve import resolve
from gradproj.experiments.runs.runner import Interrupted, run


def tensors(value):
    """All tensors in a plain value."""
    if isinstance(value, torch.Tensor):
        return [value]
    inside = value.values() if isinstance(value, dict) else value
    return [t for item in inside for t in tensors(item)] if hasattr(inside, "__iter__") else []


@pytest.mark.filterwarnings("ignore:.*copying from a non-meta parameter:UserWarning")
@pytest.mark.parametrize(
    ("method", "scenario", "names"),
    [
        ("ewc", "domain", ["weight", "centre", "first"]),
        ("mas", "domain", ["importance", "anchor"]),
        ("si", "domain", ["importance", "path", "anchor"]),
        ("ogd", "domain", ["basis"]),
        ("icarl", "task", ["images", "targets", "means"]),
        ("gdumb", "domain", ["images"]),
    ],
)
def test_plain_tensors_come_back_on_the_device_of_the_run(method, scenario, names):
    learner = toy_learner(method, scenario)
    train(learner, 0)
    # There is no GPU in most places; the meta device stands in for any that is not the CPU.
    other = methods.find(method)(Setup(learner.config, learner.stream, torch.device("meta")))
    other.load_state_dict(learner.state_dict())
    for name in names:
        found = tensors(getattr(other, name))
        assert found
        assert {t.device.type for t in found} == {"meta"}


@pytest.mark.parametrize("method", ["gem", "tinyer", "derpp"])
def test_memories_come_back_on_the_device_of_the_run(method, monkeypatch):
    learner = toy_learner(method)
    train(learner, 0)
    # It refuses parameters without numbers, and the memory does not ask it.
    monkeypatch.setattr(
        "gradproj.experiments.methods.projection.learner.Projector", lambda *_, **__: None
    )
    other = methods.find(method)(Setup(learner.config, learner.stream, torch.device("meta")))
    assert isinstance(other.memory, EpisodicMemory)
    other.memory.load_state_dict(learner.memory.state_dict())
    assert {t.device.type for t in other.memory.all(0)} == {"meta"}


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
@pytest.mark.parametrize("method", ["ewc", "gem", "gdumb", "bic", "gd"])
def test_a_run_goes_on_on_a_gpu(method, tmp_path):
    scenario = "class" if "class" in methods.find(method).scenarios else "task"
    values = {
        "benchmark": "split-digits",
        "method": method,
        "stream": {"tasks": 2, "samples": 20, "scenario": scenario},
        "memory": {"policy": "last"},
        "options": {"outside": "shuffled"} if method == "gd" else {},
    }
    asked = iter([False] * 5 + [True])
    with pytest.raises(Interrupted):
        run(resolve(values), tmp_path, device="cuda", should_stop=lambda: next(asked))
    assert run(resolve(values), tmp_path, device="cuda", resume=True)
