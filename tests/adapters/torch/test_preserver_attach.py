"""`Preserver.attach`: any optimizer and trainer, and what the guarantee is worth with each."""

import copy
import gc

import numpy as np
import pytest
import torch
from preserver_reference import ended, fill, observed
from torch import nn
from torch_reference import mlp

import gradproj as gp
from gradproj.adapters.torch import Preserver, Projector

OPTIMIZERS = {
    "sgd": lambda ps: torch.optim.SGD(ps, lr=0.1),
    "momentum": lambda ps: torch.optim.SGD(ps, lr=0.1, momentum=0.9),
    "decay": lambda ps: torch.optim.SGD(ps, lr=0.1, weight_decay=0.1),
    "adam": lambda ps: torch.optim.Adam(ps, lr=0.1),
    "adamw": lambda ps: torch.optim.AdamW(ps, lr=0.1, weight_decay=0.1),
}


def change_of_answers(when, optimizer, steps=3, share=1.0):
    """The change of a linear layer's answers to old inputs under a hard projection."""
    torch.manual_seed(0)
    model = nn.Linear(6, 3).double()
    x = torch.randn(4, 6, dtype=torch.float64)
    preserver = ended(model, x, share=share, when=when)
    optimizer = OPTIMIZERS[optimizer](model.parameters())
    preserver.attach(optimizer)
    before, weight = model(x).detach(), model.weight.detach().clone()
    for seed in range(steps):
        fill(model, seed)
        optimizer.step()
    assert float((model.weight - weight).detach().norm()) > 0.01
    return float((model(x) - before).detach().norm())


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_projecting_the_step_gives_the_guarantee_for_every_optimizer(optimizer):
    assert change_of_answers("step", optimizer) < 1e-10


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_projecting_the_gradient_gives_it_for_plain_steps_and_momentum_alone(optimizer):
    change = change_of_answers("gradient", optimizer)
    assert change < 1e-10 if optimizer in ("sgd", "momentum") else change > 1e-3


def test_momentum_from_before_a_task_ended_leaks_with_gradient_and_not_with_step():
    for when in ("gradient", "step"):
        torch.manual_seed(0)
        model = nn.Linear(6, 3).double()
        x = torch.randn(4, 6, dtype=torch.float64)
        preserver = Preserver(model, share=1.0, when=when)
        optimizer = OPTIMIZERS["momentum"](model.parameters())
        preserver.attach(optimizer)
        fill(model)
        optimizer.step()
        observed(preserver, x)
        preserver.consolidate()
        before = model(x).detach()
        fill(model)
        optimizer.step()
        change = float((model(x) - before).detach().norm())
        assert change > 1e-3 if when == "gradient" else change < 1e-10


def test_an_attached_optimizer_does_what_apply_does():
    models = [mlp(4, 5, 3).double() for _ in range(2)]
    tasks = torch.randn(2, 8, 4, dtype=torch.float64)
    for model, attached in zip(models, (False, True), strict=True):
        preserver = ended(model, *tasks)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        if attached:
            preserver.attach(optimizer)
        for seed in range(3):
            fill(model, seed)
            if not attached:
                preserver.apply()
            optimizer.step()
    for p, q in zip(models[0].parameters(), models[1].parameters(), strict=True):
        assert torch.equal(p, q)


def test_with_plain_sgd_both_forms_agree():
    models = [mlp(4, 5, 3).double() for _ in range(2)]
    x = torch.randn(8, 4, dtype=torch.float64)
    for model, when in zip(models, ("gradient", "step"), strict=True):
        preserver = ended(model, x, when=when)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        preserver.attach(optimizer)
        fill(model)
        optimizer.step()
    for p, q in zip(models[0].parameters(), models[1].parameters(), strict=True):
        torch.testing.assert_close(p, q)


def test_a_removed_handle_changes_nothing_any_more():
    model = mlp(4, 3, 2)
    preserver = ended(model, torch.randn(5, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    with preserver.attach(optimizer) as handle:
        assert repr(handle) == "Handle(attached to SGD)"
    assert repr(handle) == "Handle(removed)"
    grads, before = fill(model), [p.detach().clone() for p in model.parameters()]
    optimizer.step()
    for p, old, g in zip(model.parameters(), before, grads.values(), strict=True):
        assert torch.equal(p, old - g)
    preserver.apply()  # allowed again


def test_two_optimizers_each_project_their_own_parameters_once():
    model, other = mlp(4, 3, 2), mlp(4, 3, 2)
    x = torch.randn(5, 4)
    preserver, expected = ended(model, x), ended(other, x)
    optimizers = [torch.optim.SGD(model[k].parameters(), lr=0.0) for k in (0, 2)]
    for optimizer in optimizers:
        preserver.attach(optimizer)
    fill(model)
    fill(other)
    expected.apply()
    for optimizer in optimizers:
        optimizer.step()
    for p, q in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(p.grad, q.grad)


@pytest.mark.parametrize("when", ["gradient", "step"])
@pytest.mark.parametrize("keyword", [False, True])
def test_a_closure_computes_the_gradients(when, keyword):
    """As Lightning calls it: the closure runs the backward pass inside of the step."""
    models = [mlp(4, 5, 3).double() for _ in range(2)]
    x, new = torch.randn(2, 8, 4, dtype=torch.float64)
    for model, closed in zip(models, (False, True), strict=True):
        preserver = ended(model, x, when=when)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        preserver.attach(optimizer)

        def closure(model=model, optimizer=optimizer):
            optimizer.zero_grad()
            loss = model(new).square().mean()
            loss.backward()
            return loss

        for _ in range(2):
            if not closed:
                closure()
                optimizer.step()
            elif keyword:
                assert optimizer.step(closure=closure) > 0
            else:
                assert optimizer.step(closure) > 0
    for p, q in zip(models[0].parameters(), models[1].parameters(), strict=True):
        assert torch.equal(p, q)


@pytest.mark.parametrize("when", ["gradient", "step"])
def test_lbfgs_keeps_the_answers(when):
    model = nn.Linear(6, 3).double()
    x, new = torch.randn(2, 4, 6, dtype=torch.float64)
    preserver = ended(model, x, share=1.0, when=when)
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=5)
    preserver.attach(optimizer)

    def closure():
        optimizer.zero_grad()
        loss = (model(new) - 1).square().mean()
        loss.backward()
        return loss

    before = model(x).detach()
    first = float(closure().detach())
    for _ in range(3):
        optimizer.step(closure)
    assert float(closure().detach()) < first
    torch.testing.assert_close(model(x), before, rtol=0, atol=1e-9)


@pytest.mark.parametrize("when", ["gradient", "step"])
@pytest.mark.parametrize("fused", [False, True])
def test_a_scaler_unscales_before_the_projection_and_skips_overflows(when, fused):
    models = [mlp(4, 5, 3) for _ in range(2)]
    x, new = torch.randn(2, 8, 4)
    for model, scaled in zip(models, (False, True), strict=True):
        preserver = ended(model, x, when=when)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=fused)
        preserver.attach(optimizer)
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, enabled=scaled)
        for step in range(3):
            optimizer.zero_grad()
            scaler.scale(model(new).square().mean()).backward()
            if step == 1 and scaled:  # must be skipped without an error
                model[0].weight.grad[0, 0] = float("inf")
            if step != 1 or scaled:
                scaler.step(optimizer)
                scaler.update()
    for p, q in zip(models[0].parameters(), models[1].parameters(), strict=True):
        torch.testing.assert_close(p, q)


def test_frozen_weights_of_the_optimizer_stay():
    model = mlp(4, 3, 2)
    preserver = ended(model, torch.randn(5, 4), when="step")
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    preserver.attach(optimizer)
    fill(model)
    model[0].weight.grad = None
    before = model[0].weight.detach().clone()
    optimizer.step()
    assert torch.equal(model[0].weight, before)


class TestMisuse:
    def test_apply_while_attached(self):
        model = mlp(4, 3, 2)
        preserver = ended(model, torch.randn(5, 4))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        preserver.attach(optimizer)
        with pytest.raises(RuntimeError, match="attached to an optimizer"):
            preserver.apply()
        with pytest.raises(RuntimeError, match="this optimizer already"):
            preserver.attach(optimizer)
        del optimizer
        gc.collect()
        preserver.apply()

    def test_other_things_than_an_optimizer(self):
        preserver = Preserver(mlp(4, 3, 2))
        with pytest.raises(TypeError, match="optimizer is a list"):
            preserver.attach([])
        with pytest.raises(ValueError, match="none of the protected parameters"):
            preserver.attach(torch.optim.SGD(mlp(4, 3, 2).parameters()))

    def test_the_optimizer_inside_of_a_wrapper_is_used(self):
        class Wrapper(torch.optim.Optimizer):  # as accelerate and DeepSpeed have it
            def __init__(self, optimizer):
                self.optimizer = optimizer

        model = mlp(4, 3, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        assert Preserver(model).attach(Wrapper(Wrapper(optimizer))).optimizer is optimizer
        with pytest.raises(
            TypeError, match=r"optimizer is a Wrapper, whose step\(\) calls no hooks"
        ):
            Preserver(model).attach(Wrapper(None))

    def test_when(self):
        with pytest.raises(ValueError, match="when='never' is not known; use 'gradient', 'step'"):
            Preserver(mlp(4, 3, 2), when="never")

    def test_not_finite_step(self):
        model = mlp(4, 3, 2)
        preserver = ended(model, torch.randn(5, 4))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        preserver.attach(optimizer)
        fill(model)
        model[2].bias.grad[0] = float("nan")
        with pytest.raises(gp.NotFiniteError, match="layer '2'"):
            optimizer.step()


def test_copies_have_no_hooks():
    model = mlp(4, 3, 2)
    preserver = ended(model, torch.randn(5, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    preserver.attach(optimizer)
    twin = copy.deepcopy(preserver)
    fill(twin.model)
    fill(model)
    twin.apply()
    optimizer.step()
    for p, q in zip(model.parameters(), twin.model.parameters(), strict=True):
        assert torch.equal(p.grad, q.grad)


@pytest.mark.parametrize("attached", [False, True])
def test_with_a_projector_the_whole_update_is_projected(attached):
    """w = (g + γ Σ gᵢ)(I + λS)⁻¹: the replay term must not move what g may not."""

    def loss(model, x):
        return model(x).square().mean()

    model = nn.Linear(4, 3, bias=False).double()
    x, new, *old = torch.randn(4, 8, 4, dtype=torch.float64)
    preserver = ended(model, x, strength=2.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    if attached:
        preserver.attach(optimizer)

    def gradient(x):
        return torch.autograd.grad(loss(model, x), model.weight)[0]

    class Replay(gp.Method):
        def solve_layers(self, products):
            return gp.Solution(np.full_like(products.h, 0.5))

    Projector(model, Replay()).backward_batches(loss, (new,), [(x,) for x in old])
    whole = gradient(new) + 0.5 * sum(map(gradient, old))
    torch.testing.assert_close(model.weight.grad, whole)
    S = x.T @ x * 4 / x.square().sum()
    wanted = whole @ torch.linalg.inv(torch.eye(4, dtype=S.dtype) + 2.0 * S)
    before = model.weight.detach().clone()
    if not attached:
        preserver.apply()
    optimizer.step()
    torch.testing.assert_close(model.weight.grad, wanted)
    torch.testing.assert_close(model.weight.detach(), before - wanted)
