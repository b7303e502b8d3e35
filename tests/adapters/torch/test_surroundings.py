"""Losses and hooks of users around a step, compared with plain autograd."""

import warnings

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch_reference import mlp

import gradproj as gp
from gradproj.adapters.torch import Projector, project_gradients

METHODS = [gp.GEM(), gp.AGEM(), gp.Decomposed()]


def batches(count, seed=0):
    torch.manual_seed(seed)
    return [(torch.randn(6, 5), torch.randint(3, (6,))) for _ in range(count + 1)]


def loss(model, x, y):
    return cross_entropy(model(x), y)


def reference(model, loss, new, old, method):
    """The same from gradients that only autograd has touched."""
    parameters = list(model.parameters())

    def gradient(batch):
        return torch.autograd.grad(loss(model, *batch), parameters)

    return project_gradients(
        gradient(new), [gradient(b) for b in old], method, layers=[range(len(parameters))]
    )


def agree(model, expected, **tolerances):
    for p, w in zip(model.parameters(), expected, strict=True):
        torch.testing.assert_close(p.grad, w, **(tolerances or {"rtol": 1e-4, "atol": 1e-6}))


# Losses that do more than return a value ---------------------------------------------------------


@pytest.mark.parametrize("method", METHODS, ids=repr)
def test_a_loss_may_run_backward_itself(method):
    def adversarial(model, x, y):
        moved = x.clone().requires_grad_()
        loss(model, moved, y).backward()  # which adds to whatever `.grad` is now
        return loss(model, x + 0.1 * moved.grad.sign(), y)

    def plain(model, x, y):
        moved = x.clone().requires_grad_()
        (sign,) = torch.autograd.grad(loss(model, moved, y), moved)
        return loss(model, x + 0.1 * sign.sign(), y)

    model = mlp(5, 6, 3)
    new, *old = batches(4)
    expected = reference(model, plain, new, old, method)
    projector = Projector(model, method, layers="all")
    for _ in range(2):  # the second time with what the first has left in `.grad`
        projector.backward_batches(adversarial, new, old)
        agree(model, expected)
        model.zero_grad(set_to_none=False)


@pytest.mark.parametrize("method", METHODS, ids=repr)
def test_a_generator_may_zero_the_gradients_between_losses(method):
    model = mlp(5, 6, 3)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    new, *old = batches(3)
    expected = reference(model, loss, new, old, method)

    def losses():
        for batch in old:
            optimizer.zero_grad(set_to_none=False)
            yield loss(model, *batch)

    Projector(model, method, layers="all").backward(loss(model, *new), losses())
    agree(model, expected)


def test_every_stored_gradient_leaves_no_grad_however_it_came():
    model = mlp(5, 6, 3)
    optimizer = torch.optim.SGD(model.parameters(), 0.0)
    new, *old = batches(3)
    expected = reference(model, loss, new, old, gp.GEM())
    projector = Projector(model, gp.GEM(), layers="all")
    for _ in range(3):
        optimizer.zero_grad(set_to_none=False)
        for task, batch in enumerate(old):
            loss(model, *batch).backward()
            projector.store(task)
        loss(model, *new).backward()
        projector.project()
        agree(model, expected)


def test_a_step_that_is_given_up_can_be_reset():
    model = mlp(5, 6, 3)
    new, *old = batches(4)
    projector = Projector(model, gp.GEM(), layers="all")
    for task, batch in enumerate(old):
        loss(model, *batch).backward()
        projector.store(task)
    projector.reset()
    for task, batch in enumerate(old[:2]):
        loss(model, *batch).backward()
        projector.store(task)
    loss(model, *new).backward()
    projector.project()
    assert projector.last.coefficients.shape == (1, 2)


# Hooks and captured parameters -------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["register_hook", "register_post_accumulate_grad_hook"])
@pytest.mark.parametrize("method", METHODS, ids=repr)
def test_hooks_on_gradients_work_whatever_the_number_of_old_tasks(kind, method):
    model = mlp(5, 6, 3)
    head = list(model.parameters())[-2]

    def mask(given):
        if kind == "register_hook":
            return given * torch.tensor([[1.0], [0.0], [0.5]])
        given.grad.mul_(torch.tensor([[1.0], [0.0], [0.5]]))
        return None

    new, *old = batches(12)
    projector = Projector(model, method, layers="all", engine="auto")
    parameters = list(model.parameters())

    def masked(batch):
        found = list(torch.autograd.grad(loss(model, *batch), parameters))
        found[-2] = found[-2] * torch.tensor([[1.0], [0.0], [0.5]])
        return found

    groups = [range(len(parameters))]
    expected = project_gradients(masked(new), [masked(b) for b in old], method, layers=groups)
    getattr(head, kind)(mask)
    projector.backward_batches(loss, new, old)
    assert projector.engine == "loop"
    agree(model, expected)
    with pytest.raises(ValueError, match="has a hook on its gradient, which vmap would pass over"):
        Projector(model, method, engine="vmap")


def test_a_hook_on_a_parameter_that_has_just_come_is_seen():
    def halve(p):
        p.grad.mul_(0.5)

    def updates(in_a_list):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(5, 4))
        projector = Projector(model, gp.AGEM(), layers="all")
        model.append(nn.Linear(4, 3))
        model[1].weight.register_post_accumulate_grad_hook(halve)
        _, *old = batches(3)
        losses = [lambda batch=batch: loss(model, *batch) for batch in old]
        projector.backward(
            lambda: -sum(loss() for loss in losses), losses if in_a_list else iter(losses)
        )
        assert projector.last.corrected.all()
        return [p.grad for p in model.parameters()]

    for one, other in zip(updates(True), updates(False), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-6)


def test_a_penalty_on_captured_parameters_takes_the_loop():
    model = mlp(5, 6, 3)
    parameters = list(model.parameters())

    def penalised(model, x, y):
        return loss(model, x, y) + 0.5 * sum(p.square().sum() for p in parameters)

    new, *old = batches(12)
    expected = reference(model, penalised, new, old, gp.GEM())
    projector = Projector(model, gp.GEM(), layers="all", engine="auto")
    assert projector.engine == "vmap"
    with pytest.warns(UserWarning, match="it uses parameters other than those of the model"):
        projector.backward_batches(penalised, new, old)
    agree(model, expected)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.zero_grad()
        projector.backward_batches(penalised, new, old)  # the loop at once, without a warning
    agree(model, expected)


class Tempered(nn.Module):
    """A loss with a parameter of its own."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(2.0))

    def forward(self, model, x, y):
        return loss(model, x, y) * self.scale


@pytest.mark.parametrize("method", METHODS, ids=repr)
def test_a_parameter_of_the_loss_gets_the_gradients_of_all_tasks(method):
    model, tempered = mlp(5, 6, 3), Tempered()
    new, *old = batches(12)
    projector = Projector(model, method, engine="auto")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        projector.backward_batches(tempered, new, old)
    expected = sum(loss(model, *batch) for batch in (new, *old))
    torch.testing.assert_close(tempered.scale.grad, expected)


def test_an_error_of_the_loss_itself_is_no_reason_to_leave_vmap():
    def broken(*_):
        raise RuntimeError("no such file")

    model = mlp(5, 6, 3)
    new, *old = batches(12)
    projector = Projector(model, gp.GEM(), engine="auto")
    with pytest.raises(RuntimeError, match="no such file"):
        projector.backward_batches(broken, new, old)
    projector.backward_batches(loss, new, old)
    assert projector.engine == "vmap"


# Sums of the old gradients -----------------------------------------------------------------------


@pytest.mark.parametrize("order", [(0, 1, 2), (1, 2, 0), (1, 0, 2)])
def test_a_sum_is_judged_by_the_longest_that_it_has_been(order):
    model = nn.Linear(3, 1, bias=False)
    rows = torch.tensor([[1e-7, 0.0, 0.0], [0.3, 0.7, 1.1], [-0.3, -0.7, -1.1]])[list(order)]
    projector = Projector(model, gp.AGEM())
    projector.backward_batches(
        lambda model, x: model(x).sum(), (-torch.ones(1, 3),), [(row[None],) for row in rows]
    )
    assert torch.equal(model.weight.grad, -torch.ones(1, 3))


def test_a_skipped_step_does_not_blind_the_next():
    model = nn.Linear(3, 1, bias=False)
    projector = Projector(model, gp.AGEM(), overflow="skip")
    x, new = torch.tensor([[0.3, 0.7, 1.1]]), -torch.ones(1, 3)
    olds = [lambda k=k: k * model(x).sum() for k in (1.1, -0.7, -0.4)]
    projector.backward(lambda: torch.nan * model(new).sum(), olds)
    assert projector.last is None
    model.zero_grad()
    projector.backward(lambda: model(new).sum(), olds)
    assert torch.equal(model.weight.grad, new)


# Contents of the buffer --------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_buffer_from_inference_can_be_trained_with(dtype):
    model = mlp(5, 6, 3).to(dtype)
    new, *old = ((x.to(dtype), y) for x, y in batches(2))
    updates = []
    for inference in (True, False):
        with torch.inference_mode(inference):
            projector = Projector(model, gp.GEM())
            projector.zero_grad(task=0)  # which makes room for its row
        model.zero_grad()
        projector.backward_batches(loss, new, old)
        updates.append([p.grad.clone() for p in model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*updates, strict=True))


@pytest.mark.filterwarnings("ignore:Using backward.. with create_graph=True")
@pytest.mark.parametrize("aimed", [True, False])
def test_no_graph_is_kept_of_gradients_that_have_one(aimed):
    model = mlp(5, 6, 3)
    new, *old = batches(2)
    expected = reference(model, loss, new, old, gp.GEM())
    projector = Projector(model, gp.GEM(), layers="all")

    def run(batch, task=None):
        if aimed:
            projector.zero_grad(task)
        loss(model, *batch).backward(create_graph=True)

    for task, batch in enumerate(old):
        run(batch, task)
        projector.store(task)
    run(new)
    projector.project()
    assert not any(p.grad.requires_grad for p in model.parameters())
    agree(model, expected)


def test_a_list_of_losses_takes_as_many_rows_as_there_are_tasks():
    model = mlp(5, 6, 3)
    new, *old = batches(8)
    projector = Projector(model, gp.GEM())
    size = sum(p.numel() * p.element_size() for p in model.parameters())
    for tasks in (3, 8):
        model.zero_grad()
        projector.backward_batches(loss, new, old[:tasks])
        assert model[0].weight.grad.untyped_storage().nbytes() == (tasks + 1) * size
