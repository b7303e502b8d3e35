"""The slow and obvious way: gradients joined by torch.cat, P formed, Eq. 11 as it is printed."""

from itertools import pairwise

import torch
from torch import nn

from gradproj.adapters.torch import group_parameters


def gradient(model, loss):
    """All gradients of one loss, by name; zero where the loss does not use a parameter."""
    named = {n: p for n, p in model.named_parameters() if p.requires_grad}
    found = torch.autograd.grad(loss, list(named.values()), allow_unused=True)
    return {
        name: torch.zeros_like(p) if g is None else g.detach().clone()
        for (name, p), g in zip(named.items(), found, strict=True)
    }


def decomposed(new, old, strength=0.0):
    """w of one layer from flat float64 gradients."""
    if not old:
        return new
    mean = sum(old) / len(old)
    differences = torch.stack([g - mean for g in old])
    _, s, V = torch.linalg.svd(differences, full_matrices=False)
    B = V[s > 1e-3 * torch.stack(old).norm(dim=1).max()]
    P = torch.eye(len(new), dtype=new.dtype) - B.T @ B
    w = P @ new
    if mean @ w < 0 and mean @ P @ mean > 1e-6 * (mean @ mean):
        w = w - (mean @ w) / (mean @ P @ mean) * (P @ mean)
    return w + strength * mean


def projected(model, new, olds, layers="module", strength=0.0):
    """Map each parameter's name to its part of w, from gradients by name."""
    answer = {}
    for members in group_parameters(model, layers).values():
        flat = [torch.cat([g[n].double().flatten() for n in members]) for g in (new, *olds)]
        w = decomposed(flat[0], flat[1:], strength)
        sizes = [new[n].numel() for n in members]
        for name, part in zip(members, w.split(sizes), strict=True):
            answer[name] = part.view(new[name].shape)
    return answer


def assert_grads_equal(model, expected, rtol=1e-4):
    """`.grad` is w up to rounding, relative to the length of each parameter's part."""
    for name, p in model.named_parameters():
        if name in expected:
            scale = max(float(expected[name].norm()), 1e-3)
            torch.testing.assert_close(
                p.grad.double(), expected[name].double(), rtol=0, atol=rtol * scale, msg=name
            )


def mlp(*sizes, seed=0):
    torch.manual_seed(seed)
    parts = []
    for a, b in pairwise(sizes):
        parts += [nn.Linear(a, b), nn.ReLU()]
    return nn.Sequential(*parts[:-1])
