"""Whole class-incremental runs on the embedded digits: results, presets, resuming."""

import json
import signal

import numpy as np
import pytest
import torch

from gradproj.experiments import networks
from gradproj.experiments.common.errors import ConfigError
from gradproj.experiments.methods.class_incremental.outside import outside_images
from gradproj.experiments.networks.normalise import CONSTANTS
from gradproj.experiments.runs import presets
from gradproj.experiments.runs.resolve import resolve
from gradproj.experiments.runs.runner import Interrupted, run
from gradproj.experiments.streams import benchmarks

# A few images and a small network; phases of their own cut short.
SMALL = {
    "stream": {"tasks": 5, "samples": 40},
    "network_options": {"hidden": [12]},
    "epochs": 2,
    "milestones": [1],
    "batch": 8,
    "memory": {"total": 30, "batch": 4},
}
SHORT = {
    "eeil": {"balance": {"epochs": 1}},
    "gd": {"balance": {"epochs": 1}},
    "muc": {"training": {"epochs": 1}},
    "bic": {"correction": {"epochs": 1}},
    "gdumb": {"passes": 2},
}
NAMES = [name for name in presets.available() if name.startswith("class-digits/")]


def small(name, **changes):
    options = SHORT.get(presets.find(name).method, {})
    return presets.find(name, {**SMALL, "options": options, **changes})


def finish(config, folder, **arguments):
    assert run(config, folder, **arguments)
    return json.loads((folder / "result.json").read_text())


@pytest.mark.parametrize("name", NAMES)
def test_every_system_runs_to_the_end(name, tmp_path):
    result = finish(small(name), tmp_path)
    assert result["scenario"] == "class"
    R = np.asarray(result["accuracy_matrix"])
    assert np.array_equal(R, np.tril(R))  # classes not yet met are never right
    assert len(result["seen_accuracy"]) == 5
    losses = [
        json.loads(row)["loss"] for row in (tmp_path / "steps.jsonl").read_text().splitlines()
    ]
    assert np.isfinite(losses).all()


def test_results_hold_confusion_seen_accuracy_and_both_averages(tmp_path):
    stream = {"tasks": 4, "first": 4, "samples": 40}
    result = finish(small("class-digits/lwf", stream=stream), tmp_path)
    counts = [np.asarray(step) for step in result["confusion"]]
    assert [len(step) for step in counts] == [4, 6, 8, 10]
    sizes = [len(task.testing) for task in benchmarks.build("class-digits", **stream).tasks]
    assert [int(step.sum()) for step in counts] == np.cumsum(sizes).tolist()
    seen = [np.trace(step) / step.sum() for step in counts]
    assert result["seen_accuracy"] == pytest.approx(seen)
    found = result["metrics"]
    assert found["average_incremental_accuracy"] == pytest.approx(np.mean(seen))
    assert found["average_incremental_accuracy_without_first"] == pytest.approx(np.mean(seen[1:]))
    last = counts[-1]
    task = np.trace(last[4:6, 4:6]) / last[4:6].sum()
    assert result["accuracy_matrix"][3][1] == pytest.approx(task)
    R = np.asarray(result["accuracy_matrix"])
    drop = (R[:-1, :-1].max(0) - R[-1, :-1]).mean()
    assert found["forgetting"] == pytest.approx(drop)


def test_systems_start_alike(tmp_path):
    """Same weights, same order: the first task's losses of fine-tuning and LwF agree."""
    logs = []
    for name in ("class-digits/single", "class-digits/lwf", "class-digits/gd"):
        folder = tmp_path / name
        finish(small(name), folder)
        rows = (folder / "steps.jsonl").read_text().splitlines()[:4]
        logs.append([json.loads(row)["loss"] for row in rows])
    assert logs[0] == pytest.approx(logs[1], rel=1e-5)
    assert logs[0] == pytest.approx(logs[2], rel=1e-5)


@pytest.mark.parametrize("entry", ["gd-outside", "eeil", "muc", "bic", "tpl", "icarl", "ours"])
def test_a_run_cut_anywhere_goes_on_bit_for_bit(entry, tmp_path):
    config = small(f"class-digits/{entry}", momentum=0.9, augment="crop-flip")
    whole = finish(config, tmp_path / "whole")
    draws = np.random.default_rng(0).choice(np.arange(1, whole["steps"]), 4, replace=False)
    for step in sorted(draws.tolist()):

        def listen(event, step=step):
            if event.kind == "step" and event.step == step:
                signal.raise_signal(signal.SIGINT)

        with pytest.raises(Interrupted):
            run(config, tmp_path / "cut", resume=True, report=listen)
    resumed = finish(config, tmp_path / "cut", resume=True)
    for key in ("accuracy_matrix", "confusion", "seen_accuracy", "metrics", "steps"):
        assert resumed[key] == whole[key]


def test_augmented_and_plain_runs_differ(tmp_path):
    plain = finish(small("class-digits/derpp"), tmp_path / "1")
    changed = finish(small("class-digits/derpp", augment="crop-flip"), tmp_path / "2")
    assert plain["confusion"] != changed["confusion"]


def test_a_method_that_does_not_augment_says_so(tmp_path):
    config = resolve({"benchmark": "split-digits", "method": "ewc", "augment": "crop-flip"})
    with pytest.raises(ConfigError, match="augment='crop-flip': method 'ewc' does not augment"):
        run(config, tmp_path)


def test_published_protocols():
    lucir = presets.find("class-cifar100/lucir")
    assert lucir.stream == {"tasks": 6, "first": 50}
    assert lucir.memory.per_class == 20
    assert (lucir.lr, lucir.epochs, lucir.milestones) == (0.1, 160, (80, 120))
    icarl = presets.find("class-cifar100/icarl")
    assert (icarl.lr, icarl.lr_factor, icarl.milestones) == (2.0, 0.2, (49, 63))
    assert icarl.weight_decay == 2e-5  # the gradient of 1e-5 ‖θ‖²
    eeil = presets.find("class-cifar100/eeil")
    assert (eeil.augment, eeil.epochs) == ("twelvefold", 12 * 40)
    assert presets.find("class-cifar100/gd").augment == "jitter-crop-flip"
    ours = presets.find("class-cifar100/ours")
    assert (ours.network, ours.epochs, ours.milestones) == ("resnet34-cifar", 200, (80, 160))
    assert (ours.memory.total, ours.memory.buffers) == (2000, 5)
    gd = presets.find("class-cifar100/gd")
    for config in (gd, presets.find("class-cifar100/eeil-gd")):
        assert (config.epochs, config.milestones) == (200, (120, 160, 180))
        assert config.options.later_epochs == 180
        assert config.options.later_milestones == (120, 160, 170)
        assert config.options.balance.phase("balance", gd.batch).milestones == (10, 15)
    assert presets.find("class-cifar100/eeil-gd").options.form == "gd"


@pytest.mark.parametrize("name", [n for n in presets.available() if n.startswith("class-cifar100")])
def test_presets_of_cifar100_build_their_network(name):
    config = presets.find(name)
    options = {**config.network_options, **({"head": "cosine"} if config.method == "lucir" else {})}
    # The widest networks are built elsewhere; here it is about the options.
    options |= {"nf": 2} if config.network.startswith("resnet") else {}
    network = networks.build(config.network, 100, (3, 32, 32), **options)
    assert network(torch.zeros(2, 3, 32, 32)).shape == (2, 100)


def test_networks_standardise_their_input():
    plain = networks.build("mlp", 4, (3, 2, 2), seed=1)
    wrapped = networks.build("mlp", 4, (3, 2, 2), seed=1, normalise="cifar100")
    x = torch.rand(5, 3, 2, 2)
    mean, deviation = (torch.tensor(v).view(3, 1, 1) for v in CONSTANTS["cifar100"])
    torch.testing.assert_close(wrapped(x), plain((x - mean) / deviation))
    assert wrapped.state_dict().keys() == plain.state_dict().keys()


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        ("cifar", (3, 2, 2), "normalise='cifar' is not known; use 'cifar100'"),
        ("cifar100", (1, 2, 2), "normalise='cifar100' is for 3 channels; these images have 1"),
    ],
)
def test_normalisation_errors(name, shape, message):
    with pytest.raises(ValueError, match=message):
        networks.build("mlp", 4, shape, normalise=name)


def test_outside_images_take_the_streams_shape():
    stream = benchmarks.build("class-digits")
    shuffled = outside_images("shuffled", stream, limit=6, seed=1)
    x = stream.tasks[0].train()[0][:6]
    assert torch.equal(shuffled.flatten(1).sort(1).values, x.flatten(1).sort(1).values)
    assert not torch.equal(shuffled, x)
    wide = benchmarks.build("split", dataset=_grey(16, 3), tasks=2)
    assert outside_images("digits", wide, limit=6).shape == (6, 3, 16, 16)


def _grey(size, channels):
    from gradproj.experiments.data import Dataset

    x = torch.zeros(4, channels, size, size, dtype=torch.uint8)
    return Dataset("grey", x, torch.arange(4), x, torch.arange(4), classes=4)
