"""`Preserver(rank=k)`: the leading directions of the inputs alone."""

import copy

import pytest
import torch
from preserver_reference import ended, fill, observed
from torch import nn
from torch_reference import mlp

import gradproj as gp
from gradproj.adapters.torch import Preserver
from gradproj.adapters.torch._preserver import memory


def inputs(rows, width, directions):
    """Inputs with few directions, so that a small rank holds all of them."""
    return torch.randn(rows, directions, dtype=torch.float64) @ torch.randn(
        directions, width, dtype=torch.float64
    )


@pytest.mark.parametrize("missing", [None, "weight", "bias"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_it_is_exact_for_inputs_of_that_rank(missing, dtype):
    model = nn.Linear(20, 3).to(dtype)
    tasks = inputs(30, 20, 2).to(dtype), inputs(30, 20, 2).to(dtype)
    updates = []
    for options in ({}, {"rank": 6}):
        preserver = ended(model, *tasks, strength=2.0, **options)
        fill(model)
        if missing is not None:
            getattr(model, missing).grad = None
        preserver.apply()
        updates.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
    tolerance = 1e-8 if dtype == torch.float64 else 1e-3
    for full, low in zip(*updates, strict=True):
        torch.testing.assert_close(low, full, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("missing", [None, "bias"])
def test_other_inputs_give_what_the_core_makes_of_them(missing):
    model, x = nn.Linear(20, 3).double(), torch.randn(50, 20, dtype=torch.float64)
    preserver = ended(model, x, rank=4, strength=2.0)
    grads = fill(model)
    model.bias.grad = None if missing else model.bias.grad
    preserver.apply()
    moments = gp.InputMoments(rank=4)
    moments.update(torch.cat([x, torch.ones(50, 1, dtype=torch.float64)], 1))
    S = moments.matrix(scaled=True).dense()
    g = torch.cat([grads["weight"], grads["bias"][:, None]], 1)
    if missing:
        S, g = S[:-1, :-1], g[:, :-1]
    expected = gp.preserve(g, S, strength=2.0)
    torch.testing.assert_close(model.weight.grad, expected[:, :20])


def test_convolutions_and_small_layers():
    model = nn.Sequential(
        nn.Conv2d(4, 4, 3, groups=2), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(16, 2)
    )
    preserver = ended(model, torch.randn(9, 4, 4, 4), rank=4)
    assert [layer.rank for layer in preserver._layers] == [4, None, 4]
    grads = fill(model)
    preserver.apply()
    assert all(not torch.equal(p.grad, grads[n]) for n, p in model.named_parameters())
    assert preserver.memory["0"] < ended(model, torch.randn(9, 4, 4, 4)).memory["0"]


@pytest.mark.parametrize("rank", [0, -1, 2.0, "4", True])
def test_rank_must_be_a_positive_integer(rank):
    with pytest.raises(ValueError, match=rf"rank={rank!r} is invalid: expected an integer >= 1"):
        Preserver(nn.Linear(20, 2), rank=rank)


def test_state(tmp_path):
    model = mlp(20, 12, 2)
    preserver = ended(model, torch.randn(30, 20), rank=3)
    observed(preserver, torch.randn(30, 20))
    torch.save(preserver.state_dict(), tmp_path / "state.pt")
    other = Preserver(copy.deepcopy(model), rank=3)
    other.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    for each in (preserver, other):
        each.consolidate()
        fill(each.model)
        each.apply()
    for p, q in zip(model.parameters(), other.model.parameters(), strict=True):
        assert torch.equal(p.grad, q.grad)


def test_what_it_does_not_work_with():
    with pytest.raises(ValueError, match="rank=4 is for the soft form in one process"):
        Preserver(mlp(20, 12, 2), rank=4, share=0.9)
    with pytest.raises(ValueError, match="rank=4 is for the soft form in one process"):
        Preserver(mlp(20, 12, 2), rank=4, process_group=object())


def test_wide_layers_cause_a_warning_that_says_how_much_they_take(monkeypatch):
    monkeypatch.setattr(memory, "_WIDE", 20)
    model = nn.Sequential(nn.Embedding(50, 20), nn.Linear(20, 2))
    with pytest.warns(UserWarning, match=r"layer '1' has 21 inputs.*take 1\.76 kB.*rank=256"):
        Preserver(model)
    Preserver(model, rank=4)


def test_processes_that_are_named_later_are_refused_too():
    preserver = Preserver(nn.Linear(4, 3), rank=2)
    with pytest.raises(ValueError, match="rank=2 is for the soft form in one process"):
        preserver.process_group = object()
