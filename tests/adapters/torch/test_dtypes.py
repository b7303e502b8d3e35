"""Parameters of other dtypes than float32, autocast, and scaled losses."""

import pytest
import torch
from torch import nn
from torch_reference import assert_grads_equal, gradient, mlp, projected

import gradproj as gp
from gradproj.adapters.torch import Projector

METHODS = [gp.GEM(), gp.AGEM(), gp.Decomposed()]


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_other_precisions(dtype):
    model = mlp(4, 5, 3).to(dtype)
    x = torch.randn(4, 6, 4, dtype=dtype)
    grads = [gradient(model, model(b).square().mean()) for b in x]
    projector = Projector(model, gp.Decomposed())
    projector.backward(model(x[0]).square().mean(), (model(b).square().mean() for b in x[1:]))
    assert all(p.grad.dtype == dtype for p in model.parameters())
    tolerance = 1e-10 if dtype == torch.float64 else 4 * torch.finfo(dtype).eps
    assert_grads_equal(model, projected(model, grads[0], grads[1:]), rtol=tolerance)


def test_one_layer_may_mix_precisions():
    model = mlp(4, 5, 3)
    model[0].bfloat16()
    x = torch.randn(3, 6, 4)

    def loss(b):
        return model[2](model[0](b.bfloat16()).relu().float()).square().mean()

    grads = [gradient(model, loss(b)) for b in x]
    projector = Projector(model, gp.Decomposed(), layers="all")
    projector.backward(lambda: loss(x[0]), (loss(b) for b in x[1:]))
    assert_grads_equal(model, projected(model, grads[0], grads[1:], "all"), rtol=0.02)


@pytest.mark.parametrize(("dtype", "rank"), [(torch.float32, 0), (torch.float64, 2)])
def test_differences_beyond_the_precision_of_the_gradients_do_not_count(dtype, rank):
    model = nn.Linear(2000, 1, bias=False).to(dtype)
    G = torch.randn(2000, dtype=dtype) + 1e-5 * torch.randn(3, 2000, dtype=dtype)
    projector = Projector(model, gp.Decomposed())
    projector.backward_batches(
        lambda model, x: (model.weight * x).sum(), (-G[0],), [(row,) for row in G]
    )
    assert projector.last.rank.tolist() == [rank]


def test_an_update_beyond_float16_is_an_overflow():
    model = nn.Linear(2, 1, bias=False).half()
    x = torch.tensor([[60000.0, 0.0]]).half()

    def step(overflow):
        model.zero_grad()
        projector = Projector(model, gp.Decomposed(strength=1.0), overflow=overflow)
        projector.backward(lambda: model(x).sum(), [lambda: model(x).sum()])
        return projector

    with torch.no_grad():
        model.weight.zero_()
    with pytest.raises(gp.NotFiniteError, match="the update does not fit into the gradients"):
        step("raise")
    assert step("skip").last is None
    assert model.weight.grad.isnan().all()
    model, x = model.bfloat16(), x.bfloat16()  # which has room for it
    step("raise")
    assert float(model.weight.grad[0, 0]) == 2 * float(x[0, 0])


def test_a_skipped_step_is_marked_in_every_dtype():
    model = mlp(5, 6, 3)
    model[0].bfloat16()

    def one_is_nan():
        outputs = model[2](model[0](torch.randn(4, 5).bfloat16()).float())
        return outputs.sum() + torch.nan * model[2].bias.sum()

    Projector(model, overflow="skip").backward(one_is_nan)
    assert all(p.grad.isnan().all() for p in model.parameters())


@pytest.mark.skipif(
    not hasattr(torch.Tensor, "grad_dtype"), reason="this torch has no grad_dtype yet"
)
def test_gradients_of_another_dtype_are_refused():
    model = nn.Linear(2, 1, bias=False).bfloat16()
    model.weight.grad_dtype = torch.float32
    with pytest.raises(TypeError, match=r"its grad_dtype is torch\.float32; leave grad_dtype unc"):
        Projector(model, gp.Decomposed())


# Mixed precision ---------------------------------------------------------------------------------


def scaled_step(model, optimizer, scaler, xs, overflow=None):
    projector = Projector(model, gp.Decomposed(strength=0.5), overflow="skip")
    losses = [scaler.scale(model(x).square().sum()) for x in xs]
    if overflow is not None:
        losses[overflow] = losses[overflow] * torch.inf
    projector.backward(losses[0], losses[1:])
    scaler.step(optimizer)
    scaler.update()
    return projector


def test_mixed_precision_scale_cancels_bit_for_bit():
    xs = torch.randn(3, 8, 4)
    scaled, plain = mlp(4, 5, 3), mlp(4, 5, 3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16)
    scaled_step(scaled, torch.optim.SGD(scaled.parameters(), 0.1), scaler, xs)
    Projector(plain, gp.Decomposed(strength=0.5)).backward(
        plain(xs[0]).square().sum(), [plain(x).square().sum() for x in xs[1:]]
    )
    torch.optim.SGD(plain.parameters(), 0.1).step()
    for a, b in zip(scaled.parameters(), plain.parameters(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("where", [0, 1, 2])
def test_mixed_precision_overflow_skips_the_step_and_lowers_the_scale(where):
    model = mlp(4, 5, 3)
    before = [p.detach().clone() for p in model.parameters()]
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    projector = scaled_step(model, optimizer, scaler, torch.randn(3, 8, 4), overflow=where)
    assert projector.last is None
    assert scaler.get_scale() == 2.0**15
    for p, b in zip(model.parameters(), before, strict=True):
        assert torch.equal(p, b)
    assert scaled_step(model, optimizer, scaler, torch.randn(3, 8, 4)).last is not None


def test_autocast_passes_work():
    model = mlp(4, 5, 3)
    xs = torch.randn(3, 8, 4)

    def update(enabled):
        def loss(x):
            with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
                return model(x).square().sum()

        model.zero_grad()
        Projector(model, gp.Decomposed()).backward(lambda: loss(xs[0]), (loss(x) for x in xs[1:]))
        return torch.cat([p.grad.flatten() for p in model.parameters()])

    exact, mixed = update(False), update(True)
    assert mixed.dtype == torch.float32
    assert 0 < (mixed - exact).norm() < 0.05 * exact.norm()


@pytest.mark.parametrize("backend", ["numpy", "torch"])
@pytest.mark.parametrize("method", METHODS, ids=repr)
def test_an_autocast_around_the_step_is_for_the_losses_alone(method, backend):
    model = nn.Linear(2000, 1, bias=False)
    G = torch.randn(3, 2000)
    g = torch.randn(2000) - G.sum(0)
    with torch.autocast("cpu", torch.bfloat16):
        Projector(model, method, backend=backend).backward_batches(
            lambda model, x: (model.weight * x).sum(), (g,), [(row,) for row in G]
        )
    torch.testing.assert_close(model.weight.grad[0], gp.project(g, G, method))
