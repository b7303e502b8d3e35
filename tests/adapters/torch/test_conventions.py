"""The conventions of torch: `.grad` accumulates, losses are returned, batches may be dicts."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch_reference import mlp
from torch_steps import alone, batches, grads, loss

import gradproj as gp
from gradproj.adapters.torch import EpisodicMemory, Projector, project_gradients

METHODS = [gp.GEM(), gp.AGEM(), gp.Decomposed(rank=2)]
DTYPES = [torch.float32, torch.float64, torch.bfloat16]


# `.grad` adds up ---------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("method", METHODS, ids=repr)
def test_updates_accumulate_until_zero_grad(method, dtype):
    model = mlp(5, 6, 3).to(dtype)
    projector = Projector(model, method)
    total = [torch.zeros_like(p) for p in model.parameters()]
    for micro in range(3):
        new, *old = batches(3, micro, dtype)
        expected = alone(model, method, new, old)
        projector.backward_batches(loss, new, old)
        total = [a + b for a, b in zip(total, expected, strict=True)]
    for found, wanted in zip(grads(model), total, strict=True):
        torch.testing.assert_close(found, wanted)
    model.zero_grad()
    projector.backward_batches(loss, new, old)
    for found, wanted in zip(grads(model), expected, strict=True):
        torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("in_place", [True, False])
def test_the_update_is_added_to_a_gradient_of_another_kind(in_place):
    model = mlp(5, 6, 3)
    new, *old = batches(2)
    expected = alone(model, gp.GEM(), new, old)
    loss(model, *new).backward()
    plain, tensors = grads(model), [p.grad for p in model.parameters()]
    if not in_place:
        model[0].weight.grad = None
    Projector(model, gp.GEM()).backward_batches(loss, new, old)
    for p, w, g, tensor in zip(model.parameters(), expected, plain, tensors, strict=True):
        if not in_place and p is model[0].weight:
            assert torch.equal(p.grad, w)
        else:
            assert p.grad is tensor  # as loss.backward() leaves it
            assert torch.equal(p.grad, g + w)


def test_zero_grad_in_place_and_of_the_projector_start_again():
    model = mlp(5, 6, 3)
    new, *old = batches(2)
    expected = alone(model, gp.GEM(), new, old)
    projector = Projector(model, gp.GEM())
    for zero in (
        lambda: None,
        lambda: model.zero_grad(set_to_none=False),
        projector.zero_grad,
        lambda: projector.zero_grad(task=1),
    ):
        zero()
        projector.backward_batches(loss, new, old)
        for found, wanted in zip(grads(model), expected, strict=True):
            assert torch.equal(found, wanted)


def test_a_parameter_without_gradients_keeps_its_grad():
    model = nn.ModuleList([nn.Linear(2, 1), nn.Linear(2, 1)])
    model[1].weight.grad = torch.ones(1, 2)
    Projector(model).backward(model[0](torch.ones(1, 2)).sum())
    assert torch.equal(model[1].weight.grad, torch.ones(1, 2))
    assert model[1].bias.grad is None


def test_accumulation_survives_more_tasks_and_new_layers():
    model = nn.Sequential(nn.Linear(5, 3))
    projector = Projector(model, gp.GEM())
    new, *old = batches(4)
    first = alone(model, gp.GEM(), new, old[:1])
    projector.backward_batches(loss, new, old[:1])
    second = alone(model, gp.GEM(), new, old)
    projector.backward_batches(loss, new, old)  # with more rows
    total = [a + b for a, b in zip(first, second, strict=True)]
    for found, wanted in zip(grads(model), total, strict=True):
        torch.testing.assert_close(found, wanted)
    model.append(nn.Linear(3, 3))
    third = alone(model, gp.GEM(), new, old)
    projector.backward_batches(loss, new, old)
    for found, a, b in zip(grads(model)[:2], total, third[:2], strict=True):
        torch.testing.assert_close(found, a + b)


def test_project_replaces_what_is_there():
    model = nn.Linear(2, 1, bias=False)
    projector = Projector(model, gp.GEM())
    model(torch.tensor([[-1.0, 1.0]])).sum().backward()
    projector.store(0)
    for x in ([0.5, 0.0], [0.5, 0.0]):
        model(torch.tensor([x])).sum().backward()
    projector.project()
    assert torch.equal(model.weight.grad, torch.tensor([[0.5, 0.5]]))


# Losses and batches ------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ["loop", "vmap"])
def test_the_new_loss_is_returned(engine):
    model = mlp(5, 6, 3)
    new, *old = batches(3)
    projector = Projector(model, engine=engine)
    expected = loss(model, *new).detach()
    value = projector.backward_batches(loss, new, old)
    assert torch.equal(value, expected)
    assert not value.requires_grad
    assert torch.equal(projector.backward(loss(model, *new)), expected)
    assert torch.equal(projector.backward(lambda: loss(model, *new)), expected)


@pytest.mark.parametrize("engine", ["loop", "vmap", "auto"])
def test_batches_may_be_dicts(engine):
    model = mlp(5, 6, 3)
    new, *old = batches(12)
    expected = alone(model, gp.GEM(), new, old)
    projector = Projector(model, gp.GEM(), engine=engine)
    as_dicts = [{"y": y, "x": x} for x, y in (new, *old)]
    projector.backward_batches(loss, as_dicts[0], as_dicts[1:])
    for found, wanted in zip(grads(model), expected, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-6)
    with pytest.raises(TypeError, match=r"old is a dict; .* for example list\(old.values\(\)\)"):
        projector.backward_batches(loss, new, dict(enumerate(old)))


def test_batches_may_differ_in_size_and_hold_more_than_tensors():
    model = mlp(5, 6, 3)
    new, *old = batches(3)
    old = [{"x": x[: 2 + k], "y": y[: 2 + k], "weight": 0.5} for k, (x, y) in enumerate(old)]

    def weighted(model, x, y, weight=1.0):
        return weight * loss(model, x, y)

    parameters = list(model.parameters())
    each = [torch.autograd.grad(weighted(model, **batch), parameters) for batch in old]
    g = torch.autograd.grad(weighted(model, *new), parameters)
    expected = project_gradients(g, each, gp.GEM(), [[0, 1], [2, 3]])
    Projector(model, gp.GEM()).backward_batches(weighted, new, old)
    for found, wanted in zip(grads(model), expected, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-6)


def test_losses_that_share_a_graph_need_retain_graph():
    model = mlp(5, 6, 3)
    (x, y), _ = batches(1)

    def losses():
        outputs = model(x)
        return [cross_entropy(outputs[k : k + 2], y[k : k + 2]) for k in (0, 2, 4)]

    projector = Projector(model, gp.GEM())
    new, *old = losses()
    with pytest.raises(RuntimeError, match="retain_graph=True"):
        projector.backward(new, old)
    assert grads(model) == [None] * 4
    new, *old = losses()
    projector.backward(new, old, retain_graph=True)
    found = grads(model)
    model.zero_grad()
    projector.backward(lambda: losses()[0], [lambda: losses()[1], lambda: losses()[2]])
    for a, b in zip(found, grads(model), strict=True):
        torch.testing.assert_close(a, b)


def test_one_loss_may_stand_for_two_tasks():
    model = mlp(5, 6, 3)
    new, old = batches(1)
    same = [lambda: loss(model, *old)] * 2
    projector = Projector(model, gp.GEM())
    projector.backward(lambda: loss(model, *new), same)
    for found, wanted in zip(grads(model), alone(model, gp.GEM(), new, [old]), strict=True):
        torch.testing.assert_close(found, wanted)
    tensor = loss(model, *old)
    with pytest.raises(RuntimeError, match="retain_graph=True"):
        projector.backward(lambda: loss(model, *new), [tensor, tensor])


# Messages and attributes for users --------------------------------------------------------------


def test_repr_says_what_there_is():
    model, method = mlp(5, 6, 3), gp.GEM()
    assert repr(Projector(model, method)) == (
        f"Projector({method!r}, layers=2, engine='loop', backend='numpy')"
    )
    memory = EpisodicMemory(4, "reservoir")
    memory.add("a", torch.zeros(3, 2))
    assert repr(memory) == "EpisodicMemory(tasks=1, samples=3, per_task=4, policy='reservoir')"


@pytest.mark.parametrize("method", [gp.Decomposed(strength=0.5), gp.GEM(), gp.AGEM(), gp.SGEM()])
def test_passes_of_old_tasks_are_stored_gradients(method):
    model = mlp(4, 5, 3)
    new, *old = torch.randn(4, 6, 4)

    def backward(x):
        cross_entropy(model(x), torch.zeros(6, dtype=torch.long)).backward()

    updates = []
    for stored in (True, False):
        projector = Projector(model, copy.deepcopy(method))
        model.zero_grad()
        if stored:
            for task, x in enumerate(old):
                projector.zero_grad(task)
                backward(x)
                projector.store(task)
            projector.zero_grad()
        backward(new)
        projector.project([] if stored else [lambda x=x: backward(x) for x in old])
        updates.append([p.grad.clone() for p in model.parameters()])
        assert projector.last.coefficients.shape[1] == 3
    for a, b in zip(*updates, strict=True):
        torch.testing.assert_close(a, b)


def test_passes_that_fail_leave_the_new_gradient():
    model = mlp(4, 5, 3)
    model(torch.randn(6, 4)).sum().backward()
    before = [p.grad.clone() for p in model.parameters()]
    with pytest.raises(ZeroDivisionError):
        Projector(model).project([lambda: 1 / 0])
    assert all(torch.equal(p.grad, b) for p, b in zip(model.parameters(), before, strict=True))


def test_passes_must_be_functions_and_the_only_old_gradients():
    model = mlp(4, 5, 3)
    projector = Projector(model)
    model(torch.randn(6, 4)).sum().backward()
    with pytest.raises(TypeError, match=r"old_passes\[0\] is a Tensor; pass one function per old"):
        projector.project(model(torch.randn(6, 4)).sum())
    projector.store(0)
    model(torch.randn(6, 4)).sum().backward()
    with pytest.raises(RuntimeError, match="stored already; pass old_passes or call store"):
        projector.project([lambda: None])
