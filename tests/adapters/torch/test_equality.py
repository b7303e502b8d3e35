"""The adapter against the slow reference, on the kinds of networks that people have."""

from functools import partial

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch_reference import assert_grads_equal, gradient, mlp, projected

import gradproj as gp
from gradproj.adapters.torch import Projector


def convolutional():
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1, bias=False),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Conv2d(4, 4, 3, stride=2),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(16, 3),
    )


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(11, 8)
        self.encoder = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        return self.head(self.encoder(self.embed(x)).mean(1))


NETWORKS = {
    "mlp": (lambda: mlp(6, 8, 8, 3), lambda: torch.randn(5, 6)),
    "convolutional": (convolutional, lambda: torch.randn(5, 2, 6, 6)),
    "transformer": (Encoder, lambda: torch.randint(11, (5, 7))),
}


def loss(model, x, y):
    return cross_entropy(model(x), y)


def setting(kind, tasks):
    build, draw = NETWORKS[kind]
    model = build()
    return model, [(draw(), torch.randint(3, (5,))) for _ in range(tasks + 1)]


@pytest.mark.parametrize("strength", [0.0, 0.5])
@pytest.mark.parametrize("layers", ["module", "tensor", "child", "all"])
@pytest.mark.parametrize("kind", NETWORKS)
def test_w_is_what_the_equations_say(kind, layers, strength):
    model, batches = setting(kind, 3)
    grads = [gradient(model, loss(model, *batch)) for batch in batches]
    expected = projected(model, grads[0], grads[1:], layers, strength)
    projector = Projector(model, gp.Decomposed(strength=strength), layers)
    projector.backward(loss(model, *batches[0]), (loss(model, *b) for b in batches[1:]))
    assert_grads_equal(model, expected)
    assert projector.copied == 0


@pytest.mark.parametrize("kind", NETWORKS)
def test_callables_batches_and_pieces_give_the_same_bits(kind):
    model, (new, *old) = setting(kind, 3)
    model.eval()  # the order of passes must not matter for this comparison
    answers = []

    def keep():
        answers.append([p.grad.clone() for p in model.parameters()])
        model.zero_grad()

    projector = Projector(model, engine="loop")
    projector.backward(loss(model, *new), [loss(model, *b) for b in old])
    keep()
    projector.backward(lambda: loss(model, *new), (lambda b=b: loss(model, *b) for b in old))
    keep()
    projector.backward_batches(loss, new, old)
    keep()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for task, batch in enumerate(old):
        optimizer.zero_grad()
        loss(model, *batch).backward()
        projector.store(task)
    optimizer.zero_grad()
    loss(model, *new).backward()
    projector.project()
    keep()
    for answer in answers[1:]:
        for a, b in zip(answers[0], answer, strict=True):
            assert torch.equal(a, b)


@pytest.mark.parametrize("method", [gp.GEM(0.5), gp.AGEM(), gp.Decomposed(rank=1, strength=0.2)])
def test_every_method_agrees_with_the_core_on_joined_gradients(method):
    model, batches = setting("mlp", 4)
    grads = [gradient(model, loss(model, *b)) for b in batches]
    flat = torch.stack([torch.cat([g.flatten() for g in each.values()]) for each in grads])
    expected = gp.project(flat[0], flat[1:], method)
    Projector(model, method, "all").backward(
        loss(model, *batches[0]), [loss(model, *b) for b in batches[1:]]
    )
    found = torch.cat([p.grad.flatten() for p in model.parameters()])
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)


def test_diagnostics_have_one_entry_a_layer():
    model, (new, *old) = setting("mlp", 3)
    projector = Projector(model)
    projector.backward(loss(model, *new), [loss(model, *b) for b in old])
    assert projector.last.coefficients.shape == (3, 3)
    assert projector.last.rank.tolist() == [2, 2, 2]
    assert projector.last.corrected.shape == projector.last.multiplier.shape == (3,)


def test_without_old_tasks_w_is_the_gradient():
    model, (new,) = setting("mlp", 0)
    expected = gradient(model, loss(model, *new))
    projector = Projector(model)
    projector.backward(loss(model, *new))
    for name, p in model.named_parameters():
        assert torch.equal(p.grad, expected[name])
    assert projector.last.coefficients.shape == (3, 0)


def test_equal_seeds_give_equal_bits():
    def run():
        torch.manual_seed(3)
        model, (new, *old) = setting("convolutional", 4)
        optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
        projector = Projector(model, gp.SGEM(seed=5))
        for _ in range(5):
            optimizer.zero_grad()
            projector.backward(lambda: loss(model, *new), (loss(model, *b) for b in old))
            optimizer.step()
        return model.state_dict()

    first, second = run(), run()
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("kind", ["mlp", "convolutional"])
def test_sgem_runs_the_backward_of_the_drawn_task_alone(kind):
    def steps(form):
        torch.manual_seed(3)
        model, (new, *old) = setting(kind, 4)
        backwards = []

        def counted(batch):
            value = loss(model, *batch)
            value.register_hook(backwards.append)
            return value

        projector, found = Projector(model, gp.SGEM(strength=0.5, seed=5)), []
        for _ in range(6):
            model.zero_grad()
            projector.backward(lambda: counted(new), form(partial(counted, b) for b in old))
            found.append((projector.last, [p.grad.clone() for p in model.parameters()]))
        return found, len(backwards), dict(model.named_buffers())

    # A generator does not tell how many tasks there are: all run backward, and one is drawn after.
    some, few, buffers = steps(list)
    every, many, expected = steps(iter)
    assert (few, many) == (6 * 2, 6 * 5)
    tasks = set()
    for (last, gradients), (other, others) in zip(some, every, strict=True):
        assert last.coefficients.shape == other.coefficients.shape
        assert np.allclose(last.coefficients, other.coefficients, rtol=1e-4, atol=1e-7)
        assert np.array_equal(last.corrected, other.corrected)
        tasks |= set(np.flatnonzero(last.coefficients.any(0)).tolist())
        assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(gradients, others, strict=True))
    assert len(tasks) > 1, "the same task at each step"
    assert all(torch.equal(buffers[name], expected[name]) for name in expected)


def test_sgem_from_batches_computes_the_drawn_batch_alone_where_losses_only_return_values():
    model, (new, *old) = setting("mlp", 12)
    grads = {}
    for engine, calls in (("vmap", 2), ("loop", 13)):
        seen = []

        def counted(model, *batch, seen=seen):
            seen.append(batch)
            return loss(model, *batch)

        model.zero_grad()
        projector = Projector(model, gp.SGEM(strength=0.5, seed=5), engine=engine)
        projector.backward_batches(counted, new, old)
        assert len(seen) == calls
        grads[engine] = [p.grad.clone() for p in model.parameters()]
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(*grads.values(), strict=True))


SUMMED = [
    gp.AGEM(),
    gp.AGEM(strength=0.5),
    gp.Decomposed(rank=0, strength=0.5),
    gp.Decomposed(shared=False, specific=False, strength=0.5),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("method", SUMMED, ids=repr)
def test_the_mean_of_the_old_gradients_needs_no_row_per_task(method, dtype):
    model, (new, *old) = setting("mlp", 6)
    model.to(dtype)
    new, *old = ((x.to(dtype), y) for x, y in (new, *old))
    found = []

    def steps():
        # A generator does not tell how many tasks there are: every gradient gets its row, and the
        # buffer grows by doubling.
        for form, rows in ((list, 1), (iter, 1 if dtype == torch.bfloat16 else 8)):
            projector = Projector(model, method)
            projector.backward(loss(model, *new), form(partial(loss, model, *b) for b in old))
            yield projector, rows
        if dtype != torch.bfloat16:  # in which another order of additions may flip a ReLU
            projector = Projector(model, method, engine="vmap")
            projector.backward_batches(loss, new, old)
            yield projector, 1

    size = sum(p.numel() * p.element_size() for p in model.parameters())
    for projector, rows in steps():
        # A sum is kept in float64, beside one row in which each gradient lands.
        assert model[0].weight.grad.untyped_storage().nbytes() == rows * size
        found.append((projector.last, [p.grad.clone() for p in model.parameters()]))
        model.zero_grad()
    summed, (last, gradients), *vectorised = found
    close = {torch.float32: 1e-6, torch.float64: 1e-14, torch.bfloat16: 1e-2}[dtype]
    for other, others in (summed, *vectorised):
        assert np.allclose(last.coefficients, other.coefficients, rtol=10 * close, atol=close)
        assert np.array_equal(last.corrected, other.corrected)
        assert np.allclose(last.multiplier, other.multiplier, rtol=10 * close)
        for a, b in zip(gradients, others, strict=True):
            assert torch.allclose(a, b, atol=close)


def test_old_gradients_that_cancel_ask_for_nothing():
    model = nn.Linear(200, 1, bias=False)
    x = torch.randn(3, 200)
    # Their sum is rounding: 0.1 + 0.2 - 0.3 of one vector, and the new gradient is against it.
    old = [model(scale * x[0]).sum() for scale in (0.1, 0.2, -0.3)]
    sum_ = sum(torch.autograd.grad(value, model.weight, retain_graph=True)[0] for value in old)
    new = (model.weight * (x[1] - 1e9 * sum_)).sum()
    expected = torch.autograd.grad(new, model.weight, retain_graph=True)[0]
    assert sum_.any()
    projector = Projector(model, gp.AGEM(strength=0.5))
    projector.backward(new, old)
    assert not projector.last.corrected.any()
    assert torch.equal(model.weight.grad, expected)
