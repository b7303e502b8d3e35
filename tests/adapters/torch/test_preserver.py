"""The update of `Preserver`: soft and hard form, tasks, and the tensors in `.grad`."""

import copy
import math

import pytest
import torch
from preserver_reference import ended, fill, observed
from torch import nn
from torch.nn import functional
from torch_reference import mlp

import gradproj as gp
from gradproj.adapters.torch import Preserver


def with_ones(x):
    return torch.cat([x, torch.ones(len(x), 1, dtype=x.dtype)], 1)


class TestSoft:
    def test_the_formula_over_two_tasks_and_layers(self):
        model = mlp(4, 3, 2).double()
        tasks = torch.randn(2, 6, 4, dtype=torch.float64)
        preserver = ended(model, *tasks, strength=2.0)
        grads = fill(model)
        preserver.apply()
        first, _, second = model
        for layer, inputs in ((first, tasks), (second, first(tasks).relu().detach())):
            S = 0
            for x in inputs:
                a = with_ones(x)
                each = a.T @ a
                S = S + each * len(each) / each.trace()
            name = "0" if layer is first else "2"
            g = torch.cat([grads[f"{name}.weight"], grads[f"{name}.bias"][:, None]], 1)
            w = g @ torch.linalg.inv(torch.eye(len(S), dtype=S.dtype) + 2.0 * S)
            torch.testing.assert_close(layer.weight.grad, w[:, :-1])
            torch.testing.assert_close(layer.bias.grad, w[:, -1])

    def test_strength_zero_is_plain_training(self):
        model = mlp(4, 3, 2)
        preserver = ended(model, torch.randn(6, 4), strength=0.0)
        grads = fill(model)
        preserver.apply()
        assert all(torch.equal(p.grad, grads[n]) for n, p in model.named_parameters())

    def test_infinite_strength_leaves_old_answers_alone(self):
        model, x = nn.Linear(6, 3).double(), torch.randn(4, 6, dtype=torch.float64)
        preserver = ended(model, x, strength=math.inf)
        fill(model)
        preserver.apply()
        change = functional.linear(x, model.weight.grad, model.bias.grad)
        torch.testing.assert_close(change, torch.zeros_like(change), rtol=0, atol=1e-10)
        assert float(model.weight.grad.norm()) > 0.1

    def test_strength_may_change_between_steps(self):
        model, x = nn.Linear(4, 3).double(), torch.randn(9, 4, dtype=torch.float64)
        preserver = ended(model, x, strength=1.0)
        fill(model)
        preserver.apply()
        preserver.strength = 5.0
        fill(model)
        preserver.apply()
        found = model.weight.grad.clone()
        other = ended(model, x, strength=5.0)
        fill(model)
        other.apply()
        assert torch.equal(found, model.weight.grad)

    def test_before_the_first_task_has_ended_nothing_changes(self):
        model = mlp(4, 3, 2)
        preserver = Preserver(model)
        observed(preserver, torch.randn(5, 4))
        grads = fill(model)
        preserver.apply()
        assert all(torch.equal(p.grad, grads[n]) for n, p in model.named_parameters())
        assert preserver.tasks == 0


class TestHard:
    def test_gpm(self):
        model, x = nn.Linear(6, 3, bias=False).double(), torch.randn(50, 6, dtype=torch.float64)
        x[:, 3:] *= 0.01
        preserver = ended(model, x, share=0.99)
        grads = fill(model)
        preserver.apply()
        basis = gp.input_basis(x.T @ x / 50, share=0.99)
        assert len(basis.vectors) == 3
        torch.testing.assert_close(model.weight.grad, gp.preserve(grads["weight"], basis=basis))

    def test_sgp_accumulates_importance(self):
        model = nn.Linear(5, 3, bias=False).double()
        tasks = torch.randn(2, 20, 5, dtype=torch.float64)
        preserver = ended(model, *tasks, share=0.8, importance=5.0)
        grads = fill(model)
        preserver.apply()
        basis = None
        for x in tasks:
            basis = gp.input_basis(x.T @ x / 20, share=0.8, basis=basis, scale=5.0)
        torch.testing.assert_close(model.weight.grad, gp.preserve(grads["weight"], basis=basis))

    def test_the_share_may_change_between_tasks_and_layers(self):
        model = nn.Sequential(nn.Linear(5, 5, bias=False), nn.Linear(5, 2, bias=False))
        preserver = Preserver(model, share={"0": 0.5, "1": 1.0})
        observed(preserver, torch.randn(30, 5))
        preserver.consolidate()
        sizes = [len(layer.old.bases[0].vectors) for layer in preserver._layers]
        assert sizes[0] < 5
        assert sizes[1] == 5
        preserver.share = 1.0
        observed(preserver, torch.randn(30, 5))
        preserver.consolidate()
        assert len(preserver._layers[0].old.bases[0].vectors) == 5

    @pytest.mark.parametrize("frozen", [None, "weight", "bias"])
    @pytest.mark.parametrize(
        ("module", "shape"),
        [
            (lambda: nn.Linear(6, 3), (3, 6)),
            (lambda: nn.Conv2d(4, 4, 2, groups=2), (1, 4, 2, 2)),
            (lambda: nn.Conv2d(2, 3, 2), (2, 2, 2, 2)),
        ],
    )
    def test_old_answers_do_not_change(self, module, shape, frozen):
        model, x = module().double(), torch.randn(shape, dtype=torch.float64)
        preserver = ended(model, x, share=1.0)
        fill(model)
        if frozen is not None:
            getattr(model, frozen).grad = None
        preserver.apply()
        before = model(x)
        with torch.no_grad():
            for p in model.parameters():
                if p.grad is not None:
                    p -= p.grad
                    assert float(p.grad.norm()) > 1e-3 or frozen == "weight"
        torch.testing.assert_close(model(x), before, rtol=0, atol=1e-9)


class TestGradients:
    @pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
    def test_grad_keeps_its_memory_and_strides(self, memory_format):
        model = nn.Conv2d(3, 4, 2).to(memory_format=memory_format)
        preserver = ended(model, torch.randn(5, 3, 4, 4))
        results = []
        for strided in (False, True):
            fill(model)
            grad = model.weight.grad
            if strided:  # every second number of a larger tensor
                place = torch.zeros(4, 3, 2, 4)
                place[..., ::2] = grad
                model.weight.grad = grad = place[..., ::2]
            pointer, strides = grad.data_ptr(), grad.stride()
            preserver.apply()
            assert model.weight.grad is grad
            assert (grad.data_ptr(), grad.stride()) == (pointer, strides)
            results.append(grad.contiguous())
        assert torch.equal(*results)

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
    def test_half_precision(self, dtype):
        wide, x = nn.Linear(4, 3), torch.randn(20, 4).to(dtype).float()
        model = copy.deepcopy(wide).to(dtype)
        narrow = ended(model, x.to(dtype), strength=2.0)
        fill(model)
        for p, q in zip(wide.parameters(), model.parameters(), strict=True):
            p.grad = q.grad.float()
        ended_wide = ended(wide, x, strength=2.0)
        narrow.apply()
        ended_wide.apply()
        assert model.weight.grad.dtype == dtype
        assert torch.equal(model.weight.grad, wide.weight.grad.to(dtype))

    @pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
    @pytest.mark.parametrize("name", ["weight", "bias"])
    def test_not_finite_names_the_layer(self, value, name):
        model = mlp(4, 3, 2)
        preserver = ended(model, torch.randn(5, 4))
        fill(model)
        getattr(model[2], name).grad[0] = value
        with pytest.raises(gp.NotFiniteError, match="layer '2'"):
            preserver.apply()

    def test_large_gradients_are_not_taken_for_infinite(self):
        model = nn.Linear(4, 3)
        preserver = ended(model, torch.randn(5, 4))
        fill(model)
        model.weight.grad.fill_(3e38)
        preserver.apply()
        assert model.weight.grad.isfinite().all()

    def test_parameters_without_a_gradient_are_left_alone(self):
        model = mlp(4, 3, 2)
        preserver = ended(model, torch.randn(5, 4))
        preserver.apply()
        assert all(p.grad is None for p in model.parameters())
