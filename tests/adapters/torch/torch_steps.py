"""Batches, losses and single steps for tests of the Projector."""

import torch
from torch.nn.functional import cross_entropy

from gradproj.adapters.torch import Projector


def loss(model, x, y):
    return cross_entropy(model(x), y)


def batches(count, seed=0, dtype=torch.float32):
    draw = torch.Generator().manual_seed(seed)
    return [
        (torch.randn(6, 5, generator=draw).to(dtype), torch.randint(3, (6,), generator=draw))
        for _ in range(count + 1)
    ]


def grads(model):
    return [None if p.grad is None else p.grad.clone() for p in model.parameters()]


def alone(model, method, new, old):
    """Return the update of one step of a projector of its own; `.grad` stays as it was."""
    before = [p.grad for p in model.parameters()]
    model.zero_grad()
    Projector(model, method).backward_batches(loss, new, old)
    found = grads(model)
    for p, grad in zip(model.parameters(), before, strict=True):
        p.grad = grad
    return found
