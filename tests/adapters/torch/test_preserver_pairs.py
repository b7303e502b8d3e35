"""The update of a linear layer from few rows: the same as the full product, or not used."""

import copy
import gc
import pickle
import weakref

import pytest
import torch
from preserver_reference import ended
from torch import nn
from torch.nn import functional
from torch_reference import mlp

import gradproj as gp
from gradproj.adapters.torch import Preserver, Projector
from gradproj.adapters.torch._preserver import pairs
from gradproj.adapters.torch._preserver.old_inputs import OldInputs

IN, OUT = 12, 9


@pytest.fixture(autouse=True)
def small_layers_too(monkeypatch):
    monkeypatch.setattr(pairs, "_OVERHEAD", 0)


@pytest.fixture
def taken(monkeypatch):
    """Whether the pairs were used, for each layer and step."""
    found, take = [], pairs.Pairs.take

    def watched(self, weight, bias):
        result = take(self, weight, bias)
        found.append(result is not None)
        return result

    monkeypatch.setattr(pairs.Pairs, "take", watched)
    return found


def ready(model=None, dtype=torch.float64, **options):
    """A preserver that sees pairs, after a task and a first step."""
    model = (nn.Linear(IN, OUT) if model is None else model).to(dtype)
    preserver = ended(model, torch.randn(20, IN, dtype=dtype), strength=2.0, **options)
    model(torch.randn(2, IN, dtype=dtype)).sum().backward()
    preserver.apply()
    model.zero_grad()
    return preserver


def expected(preserver):
    """The update that the full product makes of the gradients."""
    twin = copy.deepcopy(preserver)
    for p, q in zip(preserver.model.parameters(), twin.model.parameters(), strict=True):
        q.grad = None if p.grad is None else p.grad.clone()
    assert all(layer._pairs is None for layer in twin._layers)
    twin.apply()
    return [p.grad for p in twin.model.parameters()]


def check(preserver, tolerance=1e-10):
    wanted = expected(preserver)
    preserver.apply()
    for p, g in zip(preserver.model.parameters(), wanted, strict=True):
        if g is None:
            assert p.grad is None
        else:
            torch.testing.assert_close(p.grad, g, rtol=tolerance, atol=tolerance)


def rows(n, dtype=torch.float64):
    return torch.randn(n, IN, dtype=dtype)


class TestUsed:
    @pytest.mark.parametrize("options", [{}, {"share": 0.9}])
    @pytest.mark.parametrize("bias", [True, False])
    @pytest.mark.parametrize("count", [1, 3])
    @pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
    def test_a_plain_step(self, taken, options, bias, count, dtype):
        preserver = ready(nn.Linear(IN, OUT, bias=bias), dtype, **options)
        for _ in range(3):
            preserver.model.zero_grad()
            preserver.model(rows(count, dtype)).square().sum().backward()
            check(preserver, 1e-10 if dtype == torch.float64 else 1e-4)
        assert taken == 3 * [True]

    @pytest.mark.parametrize("inplace", [False, True])
    @pytest.mark.parametrize("shape", [(4, IN), (2, 2, IN), (IN,)])
    def test_activations_tokens_and_several_layers(self, taken, inplace, shape):
        layers = (nn.Linear(IN, OUT), nn.ReLU(inplace), nn.Linear(OUT, OUT))
        preserver = ready(nn.Sequential(*layers))
        preserver.model(torch.randn(shape, dtype=torch.float64)).square().sum().backward()
        check(preserver)
        # Others than matrices are views of one; torch moves hooks when these are changed in place.
        assert taken == [not inplace or len(shape) == 2, True]

    def test_accumulated_batches(self, taken):
        preserver = ready()
        for x in (rows(2), rows(1)):
            (preserver.model(x).square().mean() / 2).backward()
        check(preserver)
        assert taken == [True]

    def test_clipped_and_scaled(self, taken):
        preserver = ready()
        (preserver.model(rows(3)).square().sum() * 1024).backward()
        for p in preserver.model.parameters():
            p.grad /= 1024
        nn.utils.clip_grad_norm_(preserver.model.parameters(), 0.1)
        check(preserver)
        assert taken == [True]

    def test_called_twice_and_differentiated_twice(self, taken):
        preserver = ready()
        x, y = rows(1), rows(1)
        loss = (preserver.model(x) * preserver.model(y)).sum()
        loss.backward(retain_graph=True)
        check(preserver)
        preserver.model.zero_grad()
        loss.backward()
        check(preserver)
        assert taken == [True, True]

    def test_a_frozen_bias(self, taken):
        preserver = ready()
        preserver.model.bias.requires_grad_(False)
        preserver.model.zero_grad()
        preserver.model(rows(2)).square().sum().backward()
        check(preserver)
        assert taken == [True]

    def test_rounding_of_large_layers(self, taken):
        """The check must not be so strict that it fails for rounding."""
        model = nn.Linear(700, 300, bias=False)
        preserver = ended(model, torch.randn(10, 700))
        model(torch.randn(1, 700)).sum().backward()
        preserver.apply()
        for seed in range(30):
            torch.manual_seed(seed)
            model.zero_grad()
            x = torch.randn(64, 700)
            x[32:] = x[:32] + 0.1 * torch.randn(32, 700)
            y = model(x * 10 ** (seed / 5 - 3))
            (y[:32].square().sum() - y[32:].square().sum()).backward()
            preserver.apply()
        assert all(taken)

    def test_attached(self, taken):
        preserver = ready()
        model = preserver.model
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        with preserver.attach(optimizer):
            model(rows(2)).square().sum().backward()
            wanted, before = expected(preserver), [p.detach().clone() for p in model.parameters()]
            optimizer.step()
        for p, old, g in zip(model.parameters(), before, wanted, strict=True):
            torch.testing.assert_close(p.detach(), old - g)
        assert taken == [True]


class TestNotUsed:
    """Near misses: each gives the result of the full product."""

    def rejected(self, preserver, taken):
        check(preserver)
        assert not any(taken)

    @pytest.mark.parametrize("count", [1, 3])
    @pytest.mark.parametrize("size", [1.0, 1e-8])
    def test_another_term_in_the_loss(self, taken, count, size):
        preserver = ready()
        penalty = size * preserver.model.weight.square().sum()
        (preserver.model(rows(count)).square().sum() + penalty).backward()
        self.rejected(preserver, taken)

    @pytest.mark.parametrize("count", [1, 3])
    def test_functional_use_with_the_same_output_gradient(self, taken, count):
        preserver = ready()
        model = preserver.model
        y = model(rows(count)) + functional.linear(rows(count), model.weight)
        y.sum().backward()
        self.rejected(preserver, taken)

    def test_clipped_by_value(self, taken):
        preserver = ready()
        preserver.model(rows(3)).square().sum().backward()
        nn.utils.clip_grad_value_(preserver.model.parameters(), 0.1)
        self.rejected(preserver, taken)

    def test_weight_and_bias_scaled_differently(self, taken):
        preserver = ready()
        preserver.model(rows(3)).square().sum().backward()
        preserver.model.bias.grad *= 2
        self.rejected(preserver, taken)

    def test_one_entry_changed(self, taken):
        preserver = ready()
        preserver.model(rows(3)).square().sum().backward()
        preserver.model.weight.grad[2, 3] += 1e-6
        self.rejected(preserver, taken)

    def test_gradients_left_over_or_removed(self, taken):
        preserver = ready()
        preserver.model(rows(2)).square().sum().backward()
        preserver.model.zero_grad()
        preserver.model(rows(2)).square().sum().backward()
        self.rejected(preserver, taken)
        preserver.model(rows(2)).square().sum().backward()  # adds to what apply() left
        self.rejected(preserver, taken)

    def test_an_input_that_was_overwritten(self, taken):
        preserver = ready()
        x = rows(2)
        preserver.model(x).square().sum().backward()
        x.zero_()
        self.rejected(preserver, taken)

    def test_many_rows(self, taken):
        preserver = ready()
        for count in (1, 50, 1):
            preserver.model(rows(count)).square().sum().backward()
        self.rejected(preserver, taken)

    def test_many_small_batches(self, taken):
        preserver = ready()
        for _ in range(20):
            preserver.model(rows(2)).square().sum().backward()
        assert len(preserver._layers[0]._pairs) == 0
        self.rejected(preserver, taken)

    def test_tied_layers_are_not_watched(self):
        model = nn.Sequential(nn.Linear(IN, IN), nn.Linear(IN, IN))
        model[1].weight, model[1].bias = model[0].weight, model[0].bias
        preserver = ready(model)
        assert preserver._layers[0]._pairs is None

    def test_a_subclass_is_not_watched(self):
        class Mine(nn.Linear):
            pass

        assert ready(Mine(IN, OUT))._layers[0]._pairs is None

    @pytest.mark.parametrize("engine", ["loop", "vmap"])
    def test_the_update_of_a_projector(self, taken, engine):
        def loss(model, x):
            return model(x).square().mean()

        preserver = ready()
        projector = Projector(preserver.model, gp.Decomposed(strength=0.5), engine=engine)
        projector.backward_batches(loss, (rows(2),), [(rows(2),), (rows(2),)])
        self.rejected(preserver, taken)

    def test_functional_weights(self, taken):
        preserver = ready()
        other = {n: p.detach().clone().requires_grad_() for n, p in
                 preserver.model.named_parameters()}  # fmt: skip
        torch.func.functional_call(preserver.model, other, rows(2)).sum().backward()
        preserver.model(rows(2)).square().sum().backward()
        self.rejected(preserver, taken)

    def test_autocast(self):
        preserver = ready(dtype=torch.float32)
        with torch.autocast("cpu", torch.bfloat16):
            preserver.model(rows(2, torch.float32)).float().square().sum().backward()
        assert len(preserver._layers[0]._pairs) == 0
        check(preserver, 1e-5)

    def test_not_finite_names_the_layer(self):
        preserver = ready(mlp(IN, OUT, OUT))
        preserver.model(rows(2)).square().sum().backward()
        preserver.model[0].weight.grad[0, 0] = float("nan")
        with pytest.raises(gp.NotFiniteError, match="layer '0'"):
            preserver.apply()

    def test_several_processes(self):
        model = nn.Linear(IN, OUT)
        preserver = Preserver(model, process_group=object())
        preserver._layers[0].old = OldInputs(torch.eye(IN + 1))
        model(torch.randn(2, IN)).sum().backward()
        preserver.apply()
        assert preserver._layers[0]._pairs is None


class TestMemory:
    def test_nothing_is_kept_after_a_step_or_without_a_backward_pass(self):
        preserver = ready()
        model = preserver.model
        x = rows(2)
        alive = weakref.ref(x)
        model(x).square().sum().backward()
        assert len(preserver._layers[0]._pairs) == 1
        preserver.apply()
        assert len(preserver._layers[0]._pairs) == 0
        model(x)
        with torch.no_grad():
            model(x)
        del x
        gc.collect()
        assert alive() is None

    def test_before_the_first_step_there_are_no_hooks(self):
        model = nn.Linear(IN, OUT)
        preserver = ended(model, torch.randn(20, IN))
        assert not model._forward_hooks
        model(torch.randn(2, IN)).sum().backward()
        preserver.apply()
        assert len(model._forward_hooks) == 1
        preserver.strength = 0.0
        preserver.apply()
        assert not model._forward_hooks

    def test_the_hooks_go_with_the_preserver(self):
        preserver = ready()
        model = preserver.model
        assert model._forward_hooks
        del preserver
        gc.collect()
        assert not model._forward_hooks

    def test_copies_of_the_model(self):
        preserver = ready()
        for twin in (
            copy.deepcopy(preserver.model),
            pickle.loads(pickle.dumps(preserver.model)),
        ):
            twin(rows(2)).sum().backward()
            assert len(preserver._layers[0]._pairs) == 0

    def test_copies_of_the_preserver_see_pairs_of_their_own(self, taken):
        twin = copy.deepcopy(ready())
        for _ in range(2):
            twin.model.zero_grad()
            twin.model(rows(2)).square().sum().backward()
            check(twin)
        assert taken == [True]
