"""The inputs that `Preserver` records: modes, masks, autocast, and passes that do not count."""

import copy
import math

import pytest
import torch
from preserver_reference import ended, fill, observed
from torch import nn
from torch_reference import mlp

import gradproj as gp
from gradproj.adapters.torch import Preserver


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
