"""`Preserver` in a training loop: recording, tasks, gradients, state and misuse."""

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


class TestRecording:
    def test_moments_are_kept_in_the_dtype_of_the_parameters(self):
        model = nn.Sequential(nn.Embedding(5, 4), nn.LayerNorm(4), nn.Linear(4, 2))
        for dtype, kept in ((torch.bfloat16, torch.float32), (torch.float64, torch.float64)):
            preserver = ended(model.to(dtype), torch.randint(5, (3, 4)))
            assert {layer.old.S.dtype for layer in preserver._layers} == {kept}

    def test_outputs_gradients_and_statistics_are_the_same(self):
        model = nn.Sequential(
            nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.Dropout(0.5), nn.Flatten(), nn.Linear(12, 2)
        )
        other = copy.deepcopy(model)
        x = torch.randn(6, 2, 4, 4)
        outputs = []
        for each, preserver in ((model, Preserver(model)), (other, None)):
            torch.manual_seed(3)
            if preserver is None:
                out = each(x)
                out.sum().backward()
            else:
                with preserver.observe():
                    out = each(x)
                    out.sum().backward()
            outputs.append([out, *(p.grad for p in each.parameters()), *each.buffers()])
        assert all(torch.equal(a, b) for a, b in zip(*outputs, strict=True))
        assert not any(m._forward_pre_hooks for m in model.modules())

    @pytest.mark.parametrize("mode", ["grad", "no_grad", "inference"])
    def test_every_mode_gives_the_same_moments(self, mode):
        model, x = mlp(4, 3, 2), torch.randn(6, 4)
        expected = ended(model, x).state_dict()["layers"]["2"]["S"]
        preserver = Preserver(model)
        modes = {
            "grad": torch.enable_grad,
            "no_grad": torch.no_grad,
            "inference": torch.inference_mode,
        }
        with modes[mode](), preserver.observe():
            model(x[:3])
        with preserver.observe():  # and outside of it again
            model(x[3:])
        preserver.consolidate()
        torch.testing.assert_close(preserver.state_dict()["layers"]["2"]["S"], expected)
        fill(model)
        preserver.apply()

    def test_autocast_does_not_reach_the_moments(self):
        model, x = nn.Linear(64, 3), torch.randn(50, 64)
        expected = ended(model, x).state_dict()["layers"]["Linear"]["S"]
        preserver = Preserver(model)
        with torch.autocast("cpu", torch.bfloat16), preserver.observe():
            model(x)
        preserver.consolidate()
        S = preserver.state_dict()["layers"]["Linear"]["S"]
        assert torch.equal(S, expected)
        with torch.autocast("cpu", torch.bfloat16):
            fill(model)
            preserver.apply()
        found = model.weight.grad.clone()
        fill(model)
        preserver.apply()
        assert torch.equal(found, model.weight.grad)

    @pytest.mark.parametrize("use_reentrant", [False, True])
    def test_a_checkpointed_pass_counts_once(self, use_reentrant):
        from torch.utils.checkpoint import checkpoint

        model, x = mlp(4, 3, 2), torch.randn(6, 4, requires_grad=True)
        preserver = Preserver(model)
        with preserver.observe():
            checkpoint(model, x, use_reentrant=use_reentrant).sum().backward()
        assert [layer.moments.count for layer in preserver._layers] == [6, 6]

    def test_a_compiled_model(self):
        model, x = mlp(4, 3, 2), torch.randn(6, 4)
        compiled = torch.compile(model, backend="eager")
        expected = compiled(x)
        for each in (model, compiled):
            preserver = Preserver(each)
            with preserver.observe():
                assert torch.equal(compiled(x), expected)
            assert [layer.moments.count for layer in preserver._layers] == [6, 6]
            preserver.consolidate()
            for _ in range(2):  # with and without hooks of the preserver
                model.zero_grad()
                compiled(x).sum().backward()
                twin = ended(copy.deepcopy(model), x)
                for p, q in zip(model.parameters(), twin.model.parameters(), strict=True):
                    q.grad = p.grad.clone()
                preserver.apply()
                twin.apply()
                for p, q in zip(model.parameters(), twin.model.parameters(), strict=True):
                    torch.testing.assert_close(p.grad, q.grad)

    def test_a_mask_leaves_padding_out(self):
        model = nn.Sequential(nn.Embedding(7, 4), nn.LayerNorm(4), nn.Linear(4, 3))
        tokens, mask = torch.randint(1, 7, (3, 5)), torch.rand(3, 5) < 0.6
        masked, packed = Preserver(model), Preserver(model)
        with masked.observe(mask=mask.long()):
            model(tokens)
        with packed.observe():
            model(tokens[mask][None])
        for preserver in (masked, packed):
            preserver.consolidate()
        for name, state in masked.state_dict()["layers"].items():
            torch.testing.assert_close(state["S"], packed.state_dict()["layers"][name]["S"])

    def test_a_mask_fits_flattened_positions_and_leaves_pooled_inputs_alone(self):
        class Pooled(nn.Module):
            def __init__(self):
                super().__init__()
                self.body, self.head = nn.Linear(4, 4), nn.Linear(4, 2)

            def forward(self, x):
                return self.head(self.body(x.flatten(0, 1)).view(x.shape).mean(1))

        model, mask = Pooled(), torch.tensor([[1, 1, 0], [1, 0, 0]])
        preserver = Preserver(model)
        with preserver.observe(mask=mask):
            model(torch.randn(2, 3, 4))
        assert [layer.moments.count for layer in preserver._layers] == [3, 2]

    def test_a_mask_that_fits_nothing_is_refused(self):
        model = nn.Linear(4, 2)
        preserver = Preserver(model)
        with (
            pytest.raises(ValueError, match=r"mask has shape \(2, 3\)"),
            preserver.observe(mask=torch.ones(2, 3)),
        ):
            model(torch.randn(5, 4))

    def test_an_input_given_by_name(self):
        model = nn.Linear(4, 2)
        preserver = Preserver(model)
        with preserver.observe():
            model(input=torch.randn(5, 4))
        preserver.consolidate()

    def test_not_finite_inputs_name_the_layer(self):
        model = mlp(4, 3, 2)
        preserver = Preserver(model)
        with pytest.raises(gp.NotFiniteError, match="layer '0'"), preserver.observe():
            model(torch.full((2, 4), math.nan))
        assert not any(m._forward_pre_hooks for m in model.modules())

    def test_nested_observation_is_refused(self):
        preserver = Preserver(mlp(4, 3, 2))
        with (
            preserver.observe(),
            pytest.raises(RuntimeError, match="active already"),
            preserver.observe(),
        ):
            pass

    def test_nothing_observed(self):
        preserver = Preserver(mlp(4, 3, 2))
        with pytest.raises(RuntimeError, match=r"no inputs were observed.*preserver.observe\(\)"):
            preserver.consolidate()
        observed(preserver, torch.randn(3, 4))
        preserver.consolidate()
        with pytest.raises(RuntimeError, match="since the last task"):
            preserver.consolidate()

    def test_a_layer_that_a_task_does_not_use_keeps_what_it_knows(self):
        class Heads(nn.Module):
            def __init__(self):
                super().__init__()
                self.body, self.heads = nn.Linear(4, 4), nn.ModuleList(2 * [None])
                for k in range(2):
                    self.heads[k] = nn.Linear(4, 2)

            def forward(self, x, task=0):
                return self.heads[task](self.body(x))

        model = Heads()
        preserver = ended(model, torch.randn(5, 4))
        first = preserver.state_dict()["layers"]["heads.0"]["S"].clone()
        assert preserver.state_dict()["layers"]["heads.1"]["S"] is None
        with preserver.observe():
            model(torch.randn(5, 4), task=1)
        preserver.consolidate()
        assert torch.equal(preserver.state_dict()["layers"]["heads.0"]["S"], first)
        assert preserver.state_dict()["layers"]["heads.1"]["S"] is not None
