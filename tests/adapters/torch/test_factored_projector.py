"""A Projector gives the same update with factored layers."""

import copy

import pytest
import torch
from factored_reference import MLP, classify, mlp, named, restored
from torch import nn
from torch.nn import functional as F  # noqa: N812

import gradproj as gp
from gradproj.adapters.torch import Projector
from gradproj.adapters.torch._engines import pair_cost


def both(model, run, monkeypatch, **options):
    """`.grad` after the same calls of a Projector with all layers in the usual form, and factored.

    `run` gets a projector. The second result says which parameters had no columns in the end.
    """
    found = []
    for wide in (False, True):
        monkeypatch.setattr(pair_cost, "worthwhile", lambda *_, wide=wide, **__: wide)
        model.zero_grad()
        projector = Projector(model, **options)
        run(projector)
        found.append({n: None if p.grad is None else p.grad.clone() for n, p in named(model)})
        assert restored(model)
    names = {p: n for n, p in named(model)}
    return *found, {names[p] for p in projector._steps.rows().apart}


def same(usual, factored, rtol=1e-9):
    for name, expected in usual.items():
        assert (factored[name] is None) == (expected is None)
        if expected is not None:
            scale = float(expected.abs().max())
            torch.testing.assert_close(factored[name], expected, rtol=0, atol=rtol * scale)


class TestProjector:
    @pytest.mark.parametrize(
        "method", [gp.Decomposed(), gp.Decomposed(strength=0.5), gp.GEM(0.5)], ids=repr
    )
    @pytest.mark.parametrize("layers", ["module", "tensor", "child", "all"])
    def test_layers_and_methods(self, method, layers, monkeypatch):
        model = mlp(torch.float64)
        losses = classify(model, [5, 4, 6, 3], dtype=torch.float64)
        new = losses.pop(None)

        def run(projector):
            for _ in range(3):  # the third step adds to `.grad` of the second
                if _ < 2:
                    model.zero_grad()
                projector.backward(new, list(losses.values()))

        *found, apart = both(model, run, monkeypatch, method=method, layers=layers)
        same(*found)
        assert apart == set(MLP)

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
    def test_lower_precision(self, dtype, monkeypatch):
        model = mlp(dtype)
        losses = classify(model, [5, 4, 6, 3], dtype=dtype)
        new = losses.pop(None)
        run = lambda projector: projector.backward(new, list(losses.values()))  # noqa: E731
        *found, apart = both(model, run, monkeypatch, method=gp.Decomposed(strength=0.5))
        same(*found, rtol=1e-5 if dtype == torch.float32 else 5e-2)
        assert apart == set(MLP)

    def test_embeddings_and_mixed_dtypes(self, monkeypatch):
        net = nn.Sequential(nn.Embedding(30, 6, padding_idx=0), nn.Linear(6, 4).double())
        net.insert(1, nn.Identity())
        net[1].forward = lambda x: x.double()
        batches = [(torch.randint(30, (4, 5)),) for _ in range(4)]
        loss = lambda net, x: net(x).square().sum()  # noqa: E731

        def run(projector):
            projector.backward_batches(loss, batches[0], batches[1:])

        *found, apart = both(net, run, monkeypatch, method=gp.GEM(0.5), layers="all")
        same(*found, rtol=1e-6)
        assert apart == {"0.weight", "2.weight"}

    def test_a_model_without_other_parameters(self, monkeypatch):
        model = mlp(torch.float64, bias=False)
        losses = classify(model, [5, 4, 6, 3], dtype=torch.float64)
        new = losses.pop(None)
        run = lambda projector: projector.backward(new, list(losses.values()))  # noqa: E731
        *found, apart = both(model, run, monkeypatch)
        same(*found)
        assert apart == set(MLP)

    def test_new_loss_as_a_tensor(self, monkeypatch):
        model = mlp(torch.float64)
        losses = classify(model, [5, 4, 6, 3], dtype=torch.float64)
        new = losses.pop(None)

        def run(projector):
            for _ in range(2):  # rows are known in the second step
                model.zero_grad()
                projector.backward(new(), list(losses.values()))

        *found, apart = both(model, run, monkeypatch)
        same(*found)
        assert apart == set(MLP)

    @pytest.mark.parametrize(
        ("options", "given"),
        [
            ({"method": gp.AGEM()}, list),
            ({"method": gp.SGEM(seed=0)}, list),
            ({"method": gp.Decomposed()}, iter),  # the number of tasks is not known
        ],
        ids=["sum", "one task", "iterator"],
    )
    def test_steps_without_pairs(self, options, given, monkeypatch):
        model = mlp(torch.float64)
        losses = classify(model, [5, 4, 6, 3], dtype=torch.float64)
        new = losses.pop(None)
        run = lambda projector: projector.backward(new, given(losses.values()))  # noqa: E731
        *found, apart = both(model, run, monkeypatch, **copy.deepcopy(options))
        assert not apart
        if not isinstance(options["method"], gp.SGEM):
            same(*found)

    def test_all_ways_in_turn(self, monkeypatch):
        model = mlp(torch.float64)
        losses = classify(model, [5, 4, 6, 3], dtype=torch.float64)
        new = losses.pop(None)

        def run(projector):
            projector.backward(new, list(losses.values()))
            projector.backward(new, list(losses.values())[:1])  # another number of tasks
            model.zero_grad()
            for task, loss in losses.items():
                projector.zero_grad(task)
                loss().backward()
                projector.store(task)
            projector.zero_grad()
            new().backward()
            projector.project()
            projector.backward(new, list(losses.values()))  # adds to it

        *found, _ = both(model, run, monkeypatch)
        same(*found)

    @pytest.mark.parametrize("fails", [0, 1, None])
    def test_error_in_the_middle(self, fails, monkeypatch):
        monkeypatch.setattr(pair_cost, "worthwhile", lambda *_, **__: True)
        model = mlp(torch.float64)
        losses = classify(model, [5, 4, 6, 3], dtype=torch.float64)
        new = losses.pop(None)
        projector = Projector(model)
        projector.backward(new, list(losses.values()))
        before = [p.grad.clone() for p in model.parameters()]

        def stop():
            model(torch.zeros(1, 12, dtype=torch.float64))
            raise ValueError("stop")

        old = [stop if task == fails else loss for task, loss in losses.items()]
        with pytest.raises(ValueError, match="stop"):
            projector.backward(stop if fails is None else new, old)
        assert restored(model)
        for p, expected in zip(model.parameters(), before, strict=True):
            assert torch.equal(p.grad, expected)

    @pytest.mark.parametrize("task", [0, None])
    def test_overflow(self, task, monkeypatch):
        monkeypatch.setattr(pair_cost, "worthwhile", lambda *_, **__: True)
        model = mlp(bias=False)
        losses = classify(model, [5, 4, 3])
        losses[task] = lambda: model(torch.full((2, 12), torch.inf)).sum()
        new = losses.pop(None)
        projector = Projector(model)
        with pytest.raises(gp.NotFiniteError, match="layer '0'"):
            projector.backward(new, list(losses.values()))
        assert all(p.grad is None for p in model.parameters())
        Projector(model, overflow="skip").backward(new, list(losses.values()))
        assert all(p.grad.isnan().all() for p in model.parameters())

    def test_update_beyond_the_range_of_float16(self, monkeypatch):
        monkeypatch.setattr(pair_cost, "worthwhile", lambda *_, **__: True)
        model = nn.Linear(40, 30, bias=False).half()
        x = torch.full((1, 40), 300.0, dtype=torch.float16)
        loss = lambda: (model(x) * 150).sum()  # noqa: E731
        projector = Projector(model, gp.Decomposed(strength=10.0))
        with pytest.raises(gp.NotFiniteError, match="does not fit"):
            projector.backward(loss, [loss, loss])

    def test_parameters_that_are_frozen_or_replaced_later(self, monkeypatch):
        monkeypatch.setattr(pair_cost, "worthwhile", lambda *_, **__: True)
        model = mlp()
        losses = list(classify(model, [5, 4, 3]).values())
        projector = Projector(model)
        projector.backward(losses[0], losses[1:])
        model[0].weight.requires_grad_(False)
        projector.backward(losses[0], losses[1:])
        assert model[0].weight.grad is None
        model[2] = nn.Linear(9, 8)
        projector.backward(losses[0], losses[1:])
        assert set(projector._steps.rows().apart) == {model[2].weight, model[4].weight}

    def test_memory(self):
        model = nn.Sequential(nn.Linear(1000, 1000), nn.Tanh(), nn.Linear(1000, 4))
        losses = list(classify(model, [4] * 10, width=1000).values())
        projector = Projector(model)
        projector.backward(losses[0], losses[1:])
        assert set(projector._steps.rows().apart) == {model[0].weight}
        assert sum(block.rows.numel() for block in projector._steps.rows().blocks) == 10 * 5004
        assert model[0].weight.grad.untyped_storage().nbytes() == 4_000_000

    def test_auto_uses_the_loop_for_wide_layers(self):
        for width, expected in ((30, "vmap"), (800, "loop")):
            model = nn.Sequential(nn.Linear(800, width), nn.Tanh(), nn.Linear(width, 4))
            batches = [(torch.randn(4, 800), torch.randint(4, (4,))) for _ in range(13)]
            loss = lambda model, x, y: F.cross_entropy(model(x), y)  # noqa: E731
            projector = Projector(model, engine="auto")
            projector.backward_batches(loss, batches[0], batches[1:])
            assert projector.engine == expected
