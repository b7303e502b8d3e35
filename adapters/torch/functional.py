"""The projection as a function of lists of gradients, for people who hold them themselves."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

import gradproj as gp


def project_gradients(
    new: Sequence[Tensor],
    old: Sequence[Sequence[Tensor | None]],
    method: gp.Method = gp.Decomposed(),  # noqa: B008 (frozen)
    layers: Sequence[Sequence[int]] | None = None,
) -> list[Tensor]:
    """Project a gradient given as a list of tensors, such as `torch.autograd.grad` returns.

    For each layer it solves the method's problem, as :func:`gradproj.project_layers` does; the
    inputs are left as they are. :class:`Projector` does the same without copying the gradients.

    Parameters
    ----------
    new : sequence of tensors
        Gradient of the new task, one tensor a parameter.
    old : sequence of sequences of tensors
        Gradient of each old task, in the same order; None stands for zero, as
        ``autograd.grad(allow_unused=True)`` has it.
    method : gradproj.Method
        What is solved.
    layers : sequence of sequences of int, optional
        Which tensors make a layer, by their positions; every one in exactly one layer. Each tensor
        by itself unless given.

    Returns
    -------
    list of tensors
        The update w, in the shapes of `new`.

    Examples
    --------
    >>> import torch
    >>> new = [torch.tensor([[1.0, 0.0]]), torch.tensor([3.0])]
    >>> old = [[torch.tensor([[-1.0, 1.0]]), None]]
    >>> project_gradients(new, old)
    [tensor([[0.5000, 0.5000]]), tensor([3.])]
    """
    groups = [[i] for i in range(len(new))] if layers is None else [list(group) for group in layers]
    if sorted(i for group in groups for i in group) != list(range(len(new))):
        raise ValueError(
            f"layers={groups} should hold each position from 0 to {len(new) - 1} exactly once"
        )
    for task, gradients in enumerate(old):
        shapes = [None if t is None else t.shape for t in gradients]
        if len(shapes) != len(new) or any(
            s is not None and s != t.shape for s, t in zip(shapes, new, strict=True)
        ):
            raise ValueError(
                f"old[{task}] has shapes {[s and tuple(s) for s in shapes]} and new "
                f"{[tuple(t.shape) for t in new]}; they should be the same"
            )
    flat_new = [_flat([new[i] for i in group]) for group in groups]
    flat_old = []
    for group, g in zip(groups, flat_new, strict=True):
        G = g.new_zeros((len(old), len(g)))
        for row, gradients in zip(G, old, strict=True):
            row.copy_(_flat([_or_zero(gradients[i], new[i]) for i in group]))
        flat_old.append(G)
    updates: list[Tensor] = [torch.empty(0)] * len(new)
    for group, w in zip(groups, gp.project_layers(flat_new, flat_old, method), strict=True):
        for i, part in zip(group, w.split([new[i].numel() for i in group]), strict=True):
            updates[i] = part.view(new[i].shape)
    return updates


def _flat(tensors: Sequence[Tensor]) -> Tensor:
    return torch.cat([t.detach().reshape(-1) for t in tensors])


def _or_zero(gradient: Tensor | None, like: Tensor) -> Tensor:
    return torch.zeros_like(like) if gradient is None else gradient
