import warnings

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch_reference import mlp

import gradproj as gp
from gradproj.adapters.torch import Projector


def loss(model, x, y):
    return cross_entropy(model(x), y)


def batches(tasks, shape, classes=3, count=5):
    return [
        (torch.randn(count, *shape), torch.randint(classes, (count,))) for _ in range(tasks + 1)
    ]


def convolution():
    return nn.Sequential(nn.Conv2d(2, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(32, 3))


def channels_last():
    return convolution().to(memory_format=torch.channels_last)


def normed():
    return nn.Sequential(nn.Linear(4, 5), nn.LayerNorm(5), nn.GELU(), nn.Linear(5, 3))


def tied():
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4), nn.Linear(4, 3))
    model[2].weight = model[0].weight
    return model


@pytest.mark.parametrize(
    ("build", "shape"),
    [
        (lambda: mlp(4, 6, 3), (4,)),
        (normed, (4,)),
        (tied, (4,)),
        (convolution, (2, 6, 6)),
        (channels_last, (2, 6, 6)),
    ],
)
def test_vmap_equals_the_loop(build, shape):
    model = build()
    new, *old = batches(4, shape)
    answers = []
    for engine in ("loop", "vmap"):
        model.zero_grad()
        projector = Projector(model, engine=engine)
        projector.backward_batches(loss, new, old)
        assert projector.copied == (4 * len(list(model.parameters())) if engine == "vmap" else 0)
        assert projector.engine == engine
        answers.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
    torch.testing.assert_close(*answers, rtol=1e-4, atol=1e-6)


def test_vmap_leaves_frozen_parameters_and_buffers_alone():
    model = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 3)).eval()
    model[0].requires_grad_(False)
    before = {name: b.clone() for name, b in model.named_buffers()}
    new, *old = batches(3, (4,))
    Projector(model, engine="vmap").backward_batches(loss, new, old)
    assert model[0].weight.grad is None
    assert all(torch.equal(b, before[name]) for name, b in model.named_buffers())


@pytest.mark.parametrize(
    ("build", "expected"),
    [
        (lambda: mlp(4, 6, 3), "vmap"),
        (normed, "vmap"),
        (convolution, "loop"),
        (lambda: nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)), "loop"),
        (lambda: nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.5)), "loop"),
        (lambda: nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.5)).eval(), "vmap"),
        (lambda: nn.TransformerEncoderLayer(4, 2, 8), "loop"),
        (lambda: nn.GRU(4, 3), "loop"),
    ],
)
def test_auto_takes_what_is_known_to_be_faster(build, expected):
    assert Projector(build(), engine="auto").engine == expected


def test_auto_takes_the_loop_for_few_tasks_or_batches_of_different_sizes():
    model = mlp(4, 3)
    new, *old = batches(12, (4,))
    projector = Projector(model, engine="auto")
    projector.backward_batches(loss, new, [*old[1:], tuple(t[:2] for t in old[0])])
    assert projector.engine == "loop"
    projector.backward_batches(loss, new, old[:3])
    assert projector.engine == "loop"
    projector.backward_batches(loss, new, old)
    assert projector.engine == "vmap"


def test_a_loss_that_stores_what_it_sees_works_for_any_number_of_tasks():
    model, seen = mlp(4, 3), []

    def telling(model, x, y):
        value = loss(model, x, y)
        seen.append(value.detach())
        return value

    new, *old = batches(12, (4,))
    Projector(model).backward_batches(telling, new, old)
    assert len(seen) == 13
    assert torch.stack(seen).isfinite().all()


def test_batches_may_hold_more_than_tensors():
    def headed(model, x, y, task):
        return loss(model, x, y) * (task + 1)

    new, *old = batches(12, (4,))
    projector = Projector(mlp(4, 3), engine="auto")
    projector.backward_batches(headed, (*new, 12), [(*batch, i) for i, batch in enumerate(old)])
    assert projector.engine == "loop"
    with pytest.raises(ValueError, match="an old batch holds a int beside its tensors"):
        Projector(mlp(4, 3), engine="vmap").backward_batches(headed, (*new, 1), [(*old[0], 0)])


class Centred(nn.Module):
    """Subtracts a running mean, which it sets again at each pass."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 3)
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x):
        self.mean = 0.9 * self.mean + 0.1 * x.mean(0).detach()
        return self.linear(x - self.mean)


def test_vmap_leaves_a_model_that_sets_its_buffers_usable():
    model = Centred()
    new, *old = batches(12, (4,))
    assert Projector(model, engine="auto").engine == "loop"
    Projector(model, engine="vmap").backward_batches(loss, new, old)
    assert model(new[0]).isfinite().all()
    assert model.mean.isfinite().all()


def test_auto_falls_back_to_the_loop_when_torch_cannot_vectorise():
    def awkward(model, x, y):
        return loss(model, x, y) * (1.0 if x.sum().item() > 1e9 else 2.0)

    model = mlp(4, 3)
    new, *old = batches(12, (4,))
    projector = Projector(model, engine="auto")
    with pytest.warns(
        UserWarning, match=r'engine="auto": torch cannot vectorise this loss \(vmap:'
    ):
        projector.backward_batches(awkward, new, old)
    assert projector.engine == "loop"
    projector.backward_batches(awkward, new, old)
    with pytest.raises(RuntimeError, match=r'this loss \(vmap: .*\); use engine="loop"'):
        Projector(model, engine="vmap").backward_batches(awkward, new, old)


@pytest.mark.parametrize("method", [gp.AGEM(), gp.GEM()], ids=repr)
def test_a_step_that_falls_back_has_done_nothing_twice(method):
    model, scale = mlp(4, 3), nn.Parameter(torch.ones(()))
    new, *old = batches(12, (4,))

    def awkward(model, x, y):
        return scale * loss(model, x, y) * (1.0 if x.sum().item() > 1e9 else 2.0)

    found = []
    for engine in ("loop", "auto"):
        model.zero_grad()
        with warnings.catch_warnings(action="ignore"):
            Projector(model, method, engine=engine).backward_batches(awkward, new, old)
        found.append((scale.grad, model[0].weight.grad.clone()))
        scale.grad = None
    torch.testing.assert_close(*found)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (
            lambda: nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)),
            'engine="vmap" cannot be used: 1 is a BatchNorm1d that moves its statistics; use',
        ),
        (lambda: nn.GRU(4, 3), "the model is a GRU, which vmap does not know"),
    ],
)
def test_vmap_refuses_and_says_why(build, message):
    with pytest.raises(ValueError, match=message):
        Projector(build(), engine="vmap")


def test_vmap_refuses_batches_of_different_shapes():
    new, *old = batches(2, (4,))
    with pytest.raises(ValueError, match=r"the old batches differ in shape or dtype .2 kinds."):
        Projector(mlp(4, 3), engine="vmap").backward_batches(
            loss, new, [old[0], tuple(t[:2] for t in old[1])]
        )


def test_vmap_draws_dropout_for_each_task():
    model = nn.Sequential(nn.Linear(4, 64), nn.Dropout(0.5), nn.Linear(64, 3))
    x = torch.randn(1, 5, 4).expand(2, 5, 4)
    seen = []

    class Looking(gp.Method):
        def solve_layers(self, products):
            seen.append(products.C)
            return gp.Solution(np.zeros_like(products.h))

    projector = Projector(model, Looking(), engine="vmap")
    projector.backward_batches(lambda m, x: m(x).square().sum(), (x[0],), [(b,) for b in x])
    assert (seen[0][:, 0, 0] != seen[0][:, 1, 1]).all()


def test_vmap_works_without_old_tasks():
    model = mlp(4, 3)
    (new,) = batches(0, (4,))
    Projector(model, engine="vmap").backward_batches(loss, new)
    assert model[0].weight.grad is not None
