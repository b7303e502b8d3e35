"""How a task is cut into batches, and that a sample left over stops no network."""

import json

import pytest
import torch

from gradproj.experiments.runs.resolve import resolve
from gradproj.experiments.runs.runner import Interrupted, run
from gradproj.experiments.runs.training import _batches

NORMALISED = {
    "benchmark": "split-digits",
    "method": "single",
    "network": "resnet18-small",
    "network_options": {"nf": 2},
    "stream": {"tasks": 2, "samples": 21},
}


@pytest.mark.parametrize(
    ("samples", "size", "sizes"),
    [
        (21, 10, [10, 11]),
        (22, 10, [10, 10, 2]),
        (20, 10, [10, 10]),
        (1, 10, [1]),
        (3, 2, [3]),
        (3, 1, [1, 1, 1]),
    ],
)
def test_one_sample_left_over_joins_the_batch_before(samples, size, sizes):
    order = torch.randperm(samples, generator=torch.Generator().manual_seed(0))
    batches = _batches(order, size)
    assert [len(batch) for batch in batches] == sizes
    assert torch.equal(torch.cat(batches), order)


def test_batch_norm_survives_a_sample_left_over_and_resumes_bit_for_bit(tmp_path):
    config, events = resolve(NORMALISED), []
    assert run(config, tmp_path / "whole", report=events.append)
    steps = [event for event in events if event.kind == "step"]
    assert [event.fraction for event in steps] == [0.25, 0.5, 0.75, 1.0]
    for _ in range(3):  # Each time after one more step.
        with pytest.raises(Interrupted):
            run(config, tmp_path / "cut", resume=True, should_stop=lambda: True)
    assert run(config, tmp_path / "cut", resume=True)
    whole, cut = (json.loads((tmp_path / n / "result.json").read_text()) for n in ("whole", "cut"))
    assert whole["steps"] == cut["steps"] == 4
    assert whole["accuracy_matrix"] == cut["accuracy_matrix"]
