"""Which layers a `Preserver` protects, what it stores of them, and what it refuses."""

import copy
import math

import pytest
import torch
from preserver_reference import ended, fill, observed
from torch import nn
from torch_reference import mlp

from gradproj.adapters.torch import Preserver


class Tied(nn.Module):
    """A language model whose embedding is its output layer, and two blocks of one layer."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(7, 4)
        self.first = nn.Linear(4, 4)
        self.second = nn.Linear(4, 4)
        self.second.weight, self.second.bias = self.first.weight, self.first.bias
        self.out = nn.Linear(4, 7, bias=False)
        self.out.weight = self.embedding.weight

    def forward(self, x):
        return self.out(self.second(self.first(self.embedding(x)).relu()).relu())


class TestChoice:
    def test_all_supported_layers_by_default_and_reasons_for_the_rest(self):
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.body = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))
                self.up = nn.ConvTranspose2d(4, 2, 2)
                self.act = nn.PReLU()
                self.scale = nn.Parameter(torch.ones(1))
                self.head = nn.utils.parametrizations.weight_norm(nn.Linear(4, 2))
                self.sparse = nn.Embedding(5, 2, sparse=True)

        preserver = Preserver(Model())
        assert preserver.protected == {
            "body.0": ("body.0.weight", "body.0.bias"),
            "body.1": ("body.1.weight", "body.1.bias"),
        }
        reasons = preserver.unprotected
        assert reasons["scale"] == "Model is not a supported layer"
        assert "transposed" in reasons["up.weight"]
        assert "transposed" in reasons["up.bias"]
        assert "PReLU" in reasons["act.weight"]
        assert "sparse" in reasons["sparse.weight"]
        assert "computed" in reasons["head.bias"]
        assert set(preserver.protected["body.0"] + preserver.protected["body.1"]) | set(
            reasons
        ) == {name for name, _ in preserver.model.named_parameters()}

    @pytest.mark.parametrize(
        ("options", "expected"),
        [
            ({"exclude": ["heads"]}, ["body.0", "body.2"]),
            ({"exclude": "heads.*"}, ["body.0", "body.2"]),
            ({"exclude": ["heads.1", "body.0"]}, ["body.2", "heads.0"]),
            ({"layers": ["body"]}, ["body.0", "body.2"]),
            ({"layers": ["body", "heads"], "exclude": ["*.0"]}, ["body.2", "heads.1"]),
            ({"layers": "*.2"}, ["body.2"]),
        ],
    )
    def test_names_and_patterns(self, options, expected):
        model = nn.ModuleDict(
            {"body": mlp(4, 3, 3), "heads": nn.ModuleList([nn.Linear(3, 2), nn.Linear(3, 2)])}
        )
        preserver = Preserver(model, **options)
        assert list(preserver.protected) == expected
        for reason in preserver.unprotected.values():
            assert reason in ("excluded", "not named in layers")

    @pytest.mark.parametrize("argument", ["layers", "exclude"])
    def test_a_name_that_matches_nothing(self, argument):
        with pytest.raises(ValueError, match=f"{argument} has 'haed', which no module"):
            Preserver(mlp(4, 3, 2), **{argument: ["haed"]})

    @pytest.mark.parametrize("given", [5, {"a": 1}, [nn.Linear(1, 1)]])
    def test_other_things_than_names(self, given):
        with pytest.raises(TypeError, match="expected names of modules"):
            Preserver(mlp(4, 3, 2), exclude=given)

    def test_excluded_layers_keep_their_gradient(self):
        model = mlp(4, 3, 2)
        preserver = ended(model, torch.randn(5, 4), exclude=["2"])
        grads = fill(model)
        preserver.apply()
        assert torch.equal(model[2].weight.grad, grads["2.weight"])
        assert not torch.equal(model[0].weight.grad, grads["0.weight"])

    def test_frozen_layers_are_protected_since_they_are_trained(self):
        model = mlp(4, 3, 2)
        model[0].requires_grad_(False)
        preserver = ended(model, torch.randn(5, 4))
        named = ended(model, torch.randn(5, 4), layers=["0"])
        assert preserver.memory["0"] == 0
        assert named.memory["0"] > 0
        model[0].requires_grad_(True)
        observed(preserver, torch.randn(5, 4))
        preserver.consolidate()
        assert preserver.memory["0"] > 0

    def test_a_model_without_supported_layers(self):
        with pytest.raises(
            ValueError, match=r"no layer .*: weight: PReLU is not a supported layer"
        ):
            Preserver(nn.PReLU())
        with pytest.raises(ValueError, match="the model has no parameters"):
            Preserver(nn.ReLU())

    def test_lazy_modules(self):
        with pytest.raises(ValueError, match="LazyLinear is lazy"):
            Preserver(nn.LazyLinear(3))

    def test_not_a_model(self):
        with pytest.raises(TypeError, match="model is a list"):
            Preserver([])


class TestTied:
    def test_uses_of_one_kind_add_up(self):
        model = Tied()
        preserver = Preserver(model)
        assert list(preserver.protected) == ["first"]
        with preserver.observe():
            model(torch.randint(7, (3, 5)))
        assert preserver._layers[0].moments.count == 30

    def test_uses_of_two_kinds_are_listed(self):
        reasons = Preserver(Tied()).unprotected
        assert reasons == {
            "embedding.weight": "tied between 'embedding' and 'out', whose inputs cannot be added "
            "up"
        }

    def test_a_shared_bias_alone(self):
        model = nn.ModuleList([nn.Linear(3, 2), nn.Linear(3, 2)])
        model[1].bias = model[0].bias
        preserver_reasons = Preserver(nn.ModuleList([*model, nn.Linear(2, 2)])).unprotected
        assert set(preserver_reasons) == {"0.weight", "0.bias", "1.weight"}


class TestState:
    @pytest.mark.parametrize("options", [{}, {"share": 0.9}, {"share": 0.9, "importance": 2.0}])
    def test_the_next_step_is_the_same_to_the_last_bit(self, tmp_path, options):
        model = nn.Sequential(
            nn.Conv2d(2, 4, 3, groups=2), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(16, 2)
        )
        preserver = ended(model, torch.randn(5, 2, 4, 4), **options)
        observed(preserver, torch.randn(5, 2, 4, 4))  # in the middle of a task
        torch.save(preserver.state_dict(), tmp_path / "state.pt")
        other = Preserver(copy.deepcopy(model), **options)
        other.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
        assert other.tasks == 1
        for _ in range(2):
            for each in (preserver, other):
                fill(each.model)
                each.apply()
                each.consolidate() if each.tasks == 1 else None
            for p, q in zip(model.parameters(), other.model.parameters(), strict=True):
                assert torch.equal(p.grad, q.grad)

    def test_a_state_of_something_else(self):
        state = ended(mlp(4, 3, 2), torch.randn(5, 4)).state_dict()
        with pytest.raises(ValueError, match=r"state has the layers \['0', '2'\]"):
            Preserver(mlp(4, 3, 2, 2)).load_state_dict(state)
        with pytest.raises(ValueError, match="made with a strength and the preserver has a share"):
            Preserver(mlp(4, 3, 2), share=0.9).load_state_dict(state)
        with pytest.raises(ValueError, match=r"layer '0' has a tensor of shape"):
            Preserver(mlp(5, 3, 2)).load_state_dict(state)
        with pytest.raises(ValueError, match=r"state has no \['tasks', 'hard', 'layers'\]"):
            Preserver(mlp(4, 3, 2)).load_state_dict(mlp(4, 3, 2).state_dict())

    def test_the_model_may_change_its_dtype(self):
        model = mlp(4, 3, 2)
        preserver = ended(model, torch.randn(9, 4))
        fill(model)
        preserver.apply()
        narrow = model[0].weight.grad.clone()
        model.double()
        fill(model)
        preserver.apply()
        torch.testing.assert_close(model[0].weight.grad, narrow.double(), rtol=1e-4, atol=1e-5)
        observed(preserver, torch.randn(9, 4, dtype=torch.float64))
        preserver.consolidate()
        preserver.apply()

    def test_equal_runs_are_equal(self):
        found = []
        for _ in range(2):
            torch.manual_seed(0)
            model = mlp(4, 3, 2)
            preserver = ended(model, torch.randn(9, 4), torch.randn(9, 4))
            fill(model)
            preserver.apply()
            found.append(model[0].weight.grad.clone())
        assert torch.equal(*found)


class TestReports:
    def test_memory(self):
        model = mlp(4, 3, 2)
        preserver = ended(model, torch.randn(5, 4))
        assert preserver.memory == {"0": 4 * 25, "2": 4 * 16}
        fill(model)
        preserver.apply()
        assert preserver.memory == {"0": 2 * 4 * 25, "2": 2 * 4 * 16}
        assert str(preserver.memory).splitlines()[-1] == "total  328 B"
        assert repr(preserver) == "Preserver(strength=1.0, layers=2, tasks=1, memory=328 B)"
        hard = Preserver(model, share=0.9)
        assert repr(hard) == "Preserver(share=0.9, layers=2, tasks=0, memory=0 B)"


class TestArguments:
    @pytest.mark.parametrize("strength", [-1.0, math.nan, "1", None])
    def test_strength(self, strength):
        with pytest.raises(ValueError, match=r"strength=.* is invalid: expected a number >= 0"):
            Preserver(mlp(4, 3, 2), strength=strength)
        preserver = Preserver(mlp(4, 3, 2))
        with pytest.raises(ValueError, match="strength="):
            preserver.strength = strength

    @pytest.mark.parametrize("share", [-0.1, 1.1, math.nan, "0.9", {"0": 0.9, "2": 2.0}])
    def test_share(self, share):
        with pytest.raises(ValueError, match=r"share=.* is invalid: expected a number in"):
            Preserver(mlp(4, 3, 2), share=share)

    def test_shares_of_other_layers(self):
        with pytest.raises(ValueError, match=r"share has other names .*\['2', 'head'\]"):
            Preserver(mlp(4, 3, 2), share={"0": 0.9, "head": 0.9})
        preserver = Preserver(mlp(4, 3, 2))
        with pytest.raises(ValueError, match="would change the form"):
            preserver.share = 0.9

    def test_importance_without_share(self):
        with pytest.raises(ValueError, match=r"importance=1\.0 needs a share"):
            Preserver(mlp(4, 3, 2), importance=1.0)
        with pytest.raises(ValueError, match=r"importance=-1\.0 is invalid"):
            Preserver(mlp(4, 3, 2), share=0.9, importance=-1.0)


class LoRA(nn.Module):
    """A LoRA layer with the names that peft gives to its parts."""

    def __init__(self):
        super().__init__()
        self.base_layer = nn.Linear(4, 3).requires_grad_(False)
        self.lora_A = nn.ModuleDict({"default": nn.Linear(4, 2, bias=False)})
        self.lora_B = nn.ModuleDict({"default": nn.Linear(2, 3, bias=False)})


def test_lora_factors_are_refused_unless_they_are_excluded():
    model = nn.Sequential(nn.Linear(4, 4), LoRA())
    with pytest.raises(ValueError, match=r"'1\.lora_A\.default' is a LoRA factor, which Preserver"):
        Preserver(model)
    preserver = Preserver(model, exclude=["*.lora_*"])
    assert preserver.unprotected["1.lora_A.default.weight"] == "excluded"
    assert "0" in preserver.protected


def test_a_layer_that_was_replaced_is_named():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    preserver = Preserver(model)
    model[1] = nn.Linear(4, 3)
    for look in (lambda: preserver.protected, lambda: preserver.observe().__enter__()):
        with pytest.raises(RuntimeError, match="layer '1' of the model was replaced after the"):
            look()


def test_a_weight_that_has_grown_is_named():
    model = nn.Sequential(nn.Linear(4, 2, bias=False))
    preserver = Preserver(model)
    with preserver.observe():
        model(torch.ones(3, 4))
    preserver.consolidate()
    model[0].weight = nn.Parameter(torch.ones(3, 4))
    model(torch.ones(3, 4)).sum().backward()
    with pytest.raises(ValueError, match=r"weight of layer '0' has another shape .*\(3, 4\)"):
        preserver.apply()
