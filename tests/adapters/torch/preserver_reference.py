"""The slow and obvious way: a layer's answers by its Jacobian, and the ridge problem over them."""

import torch
from torch.func import functional_call

from gradproj.adapters.torch import Preserver


def preserved(module, gradient, tasks, strength, count):
    """Solve min ½‖w − g‖² + λ/2 Σ over tasks of ‖change of the answers‖² / number of rows.

    All supported layers are linear in their parameters, so that the change of the answers to x is
    the Jacobian times w. Only parameters with a gradient change.

    Parameters
    ----------
    gradient : dict
        Name of each parameter that changes, to its gradient.
    tasks : list of tensors
        One input of the module per old task.
    count : callable
        From an input to its number of rows.
    """
    names = list(gradient)
    fixed = {n: p.detach() for n, p in module.named_parameters() if n not in names}
    fixed |= {n: b.detach().clone() for n, b in module.named_buffers()}
    sizes = [gradient[n].numel() for n in names]
    g = torch.cat([gradient[n].flatten() for n in names])
    H = torch.eye(len(g), dtype=g.dtype)
    for x in tasks:

        def answers(flat, x=x):
            parts = zip(names, flat.split(sizes), strict=True)
            changed = {n: part.view(gradient[n].shape) for n, part in parts}
            return functional_call(module, fixed | changed, (x,)).flatten()

        J = torch.autograd.functional.jacobian(answers, torch.zeros_like(g))
        H += strength * J.T @ J / count(x)
    w = torch.linalg.solve(H, g)
    parts = zip(names, w.split(sizes), strict=True)
    return {n: part.view(gradient[n].shape) for n, part in parts}


def observed(preserver, *inputs):
    """Record the inputs of some batches."""
    with torch.no_grad(), preserver.observe():
        for x in inputs:
            preserver.model(x)


def ended(model, *tasks, **options):
    """A preserver for which some tasks have ended."""
    preserver = Preserver(model, **options)
    for x in tasks:
        observed(preserver, x)
        preserver.consolidate()
    return preserver


def fill(model, seed=1):
    """Put random numbers into `.grad` and return copies by name."""
    g = torch.Generator().manual_seed(seed)
    for p in model.parameters():
        p.grad = torch.randn(p.shape, generator=g, dtype=torch.float64).to(p.dtype)
    return {name: p.grad.clone() for name, p in model.named_parameters()}
