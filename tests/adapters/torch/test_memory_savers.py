"""Projector with techniques that save memory: activation checkpointing and LoRA."""

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint
from torch_reference import assert_grads_equal, gradient, projected

import gradproj as gp
from gradproj.adapters.torch import Projector


def loss(model, x, y):
    return cross_entropy(model(x), y)


def batches(count):
    torch.manual_seed(1)
    return [(torch.randn(4, 8), torch.randint(3, (4,))) for _ in range(count)]


class Checkpointed(nn.Module):
    """A network whose hidden layer is computed again in the backward pass.

    Pass ``kind=None`` for the same network without checkpointing. The layer is so wide that the
    loop engine keeps its gradients as pairs.
    """

    def __init__(self, kind):
        super().__init__()
        torch.manual_seed(0)
        self.kind = kind
        self.enter = nn.Linear(8, 600)
        self.hidden = nn.Sequential(nn.Linear(600, 600), nn.ReLU())
        self.leave = nn.Linear(600, 3)

    def forward(self, x):
        x = self.enter(x)
        if self.kind is None:
            return self.leave(self.hidden(x))
        return self.leave(checkpoint(self.hidden, x, use_reentrant=self.kind == "reentrant"))


@pytest.mark.parametrize("kind", ["reentrant", "not reentrant"])
def test_checkpointed_activations_do_not_change_the_update(kind):
    new, *old = batches(6)
    grads = []
    for model in (Checkpointed(None), Checkpointed(kind)):
        Projector(model, gp.GEM(strength=0.5)).backward_batches(loss, new, old)
        grads.append([p.grad.clone() for p in model.parameters()])
    for expected, found in zip(*grads, strict=True):
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("kind", ["reentrant", "not reentrant"])
def test_vmap_refuses_checkpointed_activations(kind):
    new, *old = batches(3)
    projector = Projector(Checkpointed(kind), engine="vmap")
    with pytest.raises(RuntimeError, match=r'cannot vectorise this loss .*use engine="loop"'):
        projector.backward_batches(loss, new, old)


class LoRA(nn.Module):
    """A frozen linear layer with a trained change B A of rank 2."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.base_layer = nn.Linear(inputs, outputs).requires_grad_(False)
        self.lora_A = nn.ModuleDict({"default": nn.Linear(inputs, 2, bias=False)})
        self.lora_B = nn.ModuleDict({"default": nn.Linear(2, outputs, bias=False)})

    def forward(self, x):
        return self.base_layer(x) + self.lora_B["default"](self.lora_A["default"](x))


@pytest.mark.parametrize("engine", ["loop", "vmap"])
def test_lora_factors_are_projected_and_frozen_weights_are_left_alone(engine):
    torch.manual_seed(0)
    model = nn.Sequential(LoRA(8, 6), nn.Tanh(), LoRA(6, 3))
    new, *old = batches(4)
    gradients = [gradient(model, loss(model, *batch)) for batch in (new, *old)]
    projector = Projector(model, gp.Decomposed(strength=1.0), engine=engine)
    projector.backward_batches(loss, new, old)
    assert list(projector.layers) == [
        f"{layer}.lora_{factor}.default" for layer in (0, 2) for factor in "AB"
    ]
    assert_grads_equal(model, projected(model, gradients[0], gradients[1:], strength=1.0))
    assert model[0].base_layer.weight.grad is None
