"""Batch norm, accumulation, clipping, momentum: what people do in a step, and what then holds."""

from collections import deque

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch_reference import assert_grads_equal, gradient, mlp, projected

import gradproj as gp
from gradproj.adapters.torch import Projector


@pytest.mark.parametrize("moves", [True, False])
def test_batch_norm_uses_each_batch_and_moves_statistics_only_if_asked(moves):
    def build():
        torch.manual_seed(1)
        return nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 2))

    model, plain = build(), build()
    x = torch.randn(4, 8, 4) * torch.tensor([1.0, 2.0, 3.0, 4.0]).view(4, 1, 1)
    reference = build()
    grads = [gradient(reference, reference(b).square().sum()) for b in x]
    projector = Projector(model, gp.Decomposed(), running_statistics=moves)
    projector.backward(lambda: model(x[0]).square().sum(), (model(b).square().sum() for b in x[1:]))
    assert_grads_equal(model, projected(model, grads[0], grads[1:]))
    for batch in (*x[1:], x[0]) if moves else x[:1]:  # old tasks first, the new one last
        plain(batch)
    for name, buffer in plain.named_buffers():
        assert torch.equal(dict(model.named_buffers())[name], buffer), name


@pytest.mark.parametrize("form", [list, tuple, deque])
def test_statistics_cannot_be_kept_for_passes_already_made(form):
    model = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5))
    x = torch.randn(3, 4)
    projector = Projector(model, running_statistics=False)
    with pytest.raises(
        ValueError, match=r"old_losses holds tensors.*pass functions or a generator"
    ):
        projector.backward(model(x).sum(), form([model(x).sum()]))


def test_gradient_accumulation_equals_the_whole_batch():
    model = mlp(4, 5, 3)
    new, *old = torch.randn(4, 8, 4)
    projector = Projector(model, gp.Decomposed())
    projector.backward(model(new).square().mean(), (model(x).square().mean() for x in old))
    expected = {name: p.grad.clone() for name, p in model.named_parameters()}
    for task, x in enumerate(old):
        projector.zero_grad(task)
        for micro in x.split(2):
            (model(micro).square().mean() / 4).backward()
        projector.store(task)
    projector.zero_grad()
    for micro in new.split(2):
        (model(micro).square().mean() / 4).backward()
    projector.project()
    assert_grads_equal(model, expected, rtol=1e-5)
    assert projector.copied == 0


def test_clipping_after_is_torch_as_usual():
    model = mlp(4, 5, 3)
    x = torch.randn(3, 8, 4)
    projector = Projector(model, gp.Decomposed())
    projector.backward(model(x[0]).square().sum(), (model(b).square().sum() for b in x[1:]))
    nn.utils.clip_grad_norm_(model.parameters(), 0.01)
    total = torch.cat([p.grad.flatten() for p in model.parameters()]).norm()
    assert float(total) == pytest.approx(0.01, rel=1e-3)


def projected_by_hand(new, old, method=None):
    """Project one gradient of one layer; return the parameter, with w in its `.grad`."""
    model = nn.Linear(len(new), 1, bias=False)
    losses = [model(torch.tensor([x])).sum() for x in (new, *old)]
    Projector(model, method or gp.GEM()).backward(losses[0], losses[1:])
    return model.weight


def test_clipping_after_keeps_the_constraints_by_norm_and_not_by_value():
    old = [1.0, -3.0]
    w = projected_by_hand([2.0, 4.0], [old])
    assert w.grad.tolist() == [[3.0, 1.0]]
    nn.utils.clip_grad_norm_([w], 1.0)
    assert float(w.grad @ torch.tensor(old)) == pytest.approx(0, abs=1e-6)
    w.grad.copy_(torch.tensor([[3.0, 1.0]]))
    nn.utils.clip_grad_value_([w], 1.0)
    assert float(w.grad @ torch.tensor(old)) == -2


@pytest.mark.parametrize(
    ("method", "same"), [(gp.GEM(), True), (gp.AGEM(), False), (gp.Decomposed(), False)]
)
def test_an_old_gradient_that_is_clipped_before_matters_to_the_mean_alone(method, same):
    new, first, second = [2.0, 1.0, 3.0], [1.0, 0.0, 0.0], [0.0, -1.0, 0.0]
    whole = projected_by_hand(new, [first, second], method).grad
    clipped = projected_by_hand(new, [[x / 4 for x in first], second], method).grad
    assert torch.allclose(whole, clipped, atol=1e-5) == same


def test_momentum_acts_after_the_projection_and_may_hurt_an_old_task():
    weight, old = nn.Parameter(torch.zeros(1, 2)), torch.tensor([-1.0, 0.0])
    for momentum, hurt in ((0.0, False), (0.9, True)):
        optimizer = torch.optim.SGD([weight], 1.0, momentum=momentum)
        for olds in ([], [old.tolist()]):
            weight.grad = projected_by_hand([1.0, 0.0], olds).grad
            before = weight.detach().clone()
            optimizer.step()
        # To first order the old task's loss changes by its gradient along the step.
        assert (float((weight.detach() - before) @ old) > 0) == hurt


def test_clipping_before_uses_the_pieces():
    model = mlp(4, 5, 3)
    x = torch.randn(3, 8, 4)

    def clipped(batch):
        g = gradient(model, model(batch).square().sum())
        norm = torch.cat([part.flatten() for part in g.values()]).norm()
        return {name: part / norm for name, part in g.items()}

    grads = [clipped(b) for b in x]
    projector = Projector(model, gp.Decomposed())
    for task, batch in enumerate(x[1:]):
        projector.zero_grad(task)
        model(batch).square().sum().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        projector.store(task)
    projector.zero_grad()
    model(x[0]).square().sum().backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    projector.project()
    assert_grads_equal(model, projected(model, grads[0], grads[1:]))
    assert projector.copied == 0


@pytest.mark.parametrize("old", [0, 2])
def test_a_gradient_that_is_not_finite_names_its_layer(old):
    model = mlp(4, 5, 3)
    projector = Projector(model, gp.Decomposed())
    losses = [
        model[2].bias.sum() * torch.nan,
        *(model(torch.randn(2, 4)).sum() for _ in range(old)),
    ]
    with pytest.raises(
        gp.NotFiniteError, match="the gradients of layer '2' contain NaN or infinity; lower"
    ):
        projector.backward(losses[0], losses[1:])
    projector.backward(model(torch.randn(2, 4)).sum())  # and the next step is clean
    assert all(torch.isfinite(p.grad).all() for p in model.parameters())


def test_only_one_graph_is_alive():
    model = mlp(4, 5, 3)
    alive, most = [0], [0]

    class Counted(torch.autograd.Function):
        @staticmethod
        def forward(_, x):
            alive[0] += 1
            most[0] = max(most[0], alive[0])
            return x.clone()

        @staticmethod
        def backward(_, g):
            alive[0] -= 1
            return g

    def loss(x):
        return Counted.apply(cross_entropy(model(x), torch.zeros(6, dtype=torch.long)))

    x = torch.randn(5, 6, 4)
    Projector(model, gp.Decomposed()).backward(loss(x[0]), (loss(b) for b in x[1:]))
    Projector(model, gp.Decomposed()).backward(
        lambda: loss(x[0]), [lambda b=b: loss(b) for b in x[1:]]
    )
    assert (most[0], alive[0]) == (1, 0)
