"""Models that change between steps, and layers that change during a step."""

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch_reference import mlp
from torch_steps import alone, batches, grads, loss

import gradproj as gp
from gradproj.adapters.torch import Projector

METHODS = [gp.GEM(), gp.AGEM(), gp.Decomposed(rank=2)]


class Repeated(nn.Module):
    """A layer that is used three times, recomputed in backward, so that it completes thrice."""

    def __init__(self, reentrant):
        super().__init__()
        self.layer, self.head, self.reentrant = nn.Linear(5, 5), nn.Linear(5, 3), reentrant

    def forward(self, x):
        for _ in range(3):
            if self.reentrant is None:
                x = self.layer(x).relu()
            else:
                x = checkpoint(lambda x: self.layer(x).relu(), x, use_reentrant=self.reentrant)
        return self.head(x)


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("method", METHODS, ids=repr)
def test_a_layer_may_complete_several_times_in_one_backward(method, reentrant):
    answers = []
    for mode in (None, reentrant):
        torch.manual_seed(1)
        model = Repeated(mode)
        new, *old = (
            (x.requires_grad_(), y) for x, y in batches(3)
        )  # reentrant checkpoints need an input with a gradient
        projector = Projector(model, method)
        projector.backward_batches(loss, new, old)
        assert projector.copied == 0
        answers.append(grads(model))
    for a, b in zip(*answers, strict=True):
        torch.testing.assert_close(a, b)


def test_freezing_and_adding_between_steps_leaves_a_defined_grad():
    model = nn.Sequential(nn.Linear(5, 5), nn.Linear(5, 3))
    new, *old = batches(2)
    projector = Projector(model, gp.GEM())
    projector.backward_batches(loss, new, old)
    before = grads(model)
    model[0].requires_grad_(False)
    assert list(projector.layers) == ["1"]
    assert model[0].weight.grad is None
    assert torch.equal(model[1].weight.grad, before[2])
    model[0].requires_grad_(True)
    model.append(nn.Linear(3, 3))
    model.zero_grad()
    expected = alone(model, gp.GEM(), new, old)
    projector.backward_batches(loss, new, old)
    for found, wanted in zip(grads(model), expected, strict=True):
        assert torch.equal(found, wanted)


@pytest.mark.parametrize("method", METHODS, ids=repr)
def test_the_dtype_may_change_between_steps(method):
    model = mlp(5, 6, 3)
    projector = Projector(model, method)
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float32):
        model.to(dtype)
        new, *old = batches(3, dtype=dtype)
        expected = alone(model, method, new, old)
        model.zero_grad()
        projector.backward_batches(loss, new, old)
        for found, wanted in zip(grads(model), expected, strict=True):
            assert found.dtype == dtype
            assert torch.equal(found, wanted)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_the_device_may_change_between_steps():
    model = mlp(5, 6, 3)
    projector = Projector(model, gp.GEM())
    for device in ("cpu", "cuda", "cpu"):
        model.to(device)
        new, *old = ((x.to(device), y.to(device)) for x, y in batches(3))
        expected = alone(model, gp.GEM(), new, old)
        model.zero_grad()
        projector.backward_batches(loss, new, old)
        for found, wanted in zip(grads(model), expected, strict=True):
            assert found.device.type == device
            torch.testing.assert_close(found, wanted)


def test_a_change_of_dtype_keeps_what_was_accumulated():
    model = mlp(5, 6, 3)
    new, *old = batches(2)
    projector = Projector(model, gp.GEM())
    projector.backward_batches(loss, new, old)
    before = grads(model)
    model.double()
    new, *old = batches(2, dtype=torch.float64)
    update = alone(model, gp.GEM(), new, old)
    projector.backward_batches(loss, new, old)
    for found, a, b in zip(grads(model), before, update, strict=True):
        torch.testing.assert_close(found, a.double() + b)


def test_observers_of_quantization_move_only_if_asked():
    quantization = pytest.importorskip("torch.ao.quantization")

    class Observed(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(5, 3)
            self.observer = quantization.MovingAverageMinMaxObserver()
            self.fake = quantization.FakeQuantize()

        def forward(self, x):
            return self.linear(self.fake(self.observer(x)))

    new, *old = batches(2)
    old = [(100 * x, y) for x, y in old]
    ranges = []
    for moves in (True, False):
        model = Observed()
        projector = Projector(model, running_statistics=moves)
        projector.backward_batches(loss, new, old)
        ranges.append((float(model.observer.max_val), float(model.fake.scale)))
    alone = Observed()
    alone(new[0])
    assert ranges[1] == (float(alone.observer.max_val), float(alone.fake.scale))
    assert ranges[0][0] > 10 * ranges[1][0]
    with pytest.raises(ValueError, match="observer is a MovingAverageMinMaxObserver that moves"):
        Projector(Observed(), engine="vmap")
