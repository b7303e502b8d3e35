"""The projection as a function of lists of gradients."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

import gradproj as gp

# Lists without None give lists without None.
Gradient = TypeVar("Gradient", bound=Tensor | None)


def project_gradients(
    new: Sequence[Gradient],
    old: Sequence[Sequence[Tensor | None]],
    method: gp.Method = gp.Decomposed(),  # noqa: B008 (frozen)
    layers: Sequence[Sequence[int]] | None = None,
) -> list[Gradient]:
    """Project a gradient given as a list of tensors, such as `torch.autograd.grad` returns.

    For each layer it solves the method's problem, as :func:`gradproj.project_layers` does. The
    inputs are not changed. :class:`Projector` does the same without copying the gradients.

    Parameters
    ----------
    new : sequence of tensors
        Gradient of the new task, one tensor per parameter; None stands for zero, as
        ``autograd.grad(allow_unused=True)`` has it.
    old : sequence of sequences of tensors
        Gradient of each old task, in the same order; None as in `new`.
    method : gradproj.Method
        The problem that is solved for each layer. The default is the paper's equations, as in
        :func:`gradproj.project`; :class:`Projector` has another default.
    layers : sequence of sequences of int, optional
        Which tensors make a layer, by their positions, each in exactly one layer. By default each
        tensor is a layer of its own.

    Returns
    -------
    list of tensors
        The update w, in the shapes of `new`; None for a parameter that no task has a gradient for.

    Examples
    --------
    >>> import torch
    >>> new = [torch.tensor([[1.0, 0.0]]), torch.tensor([3.0])]
    >>> old = [[torch.tensor([[-1.0, 1.0]]), None]]
    >>> project_gradients(new, old)
    [tensor([[0.5000, 0.5000]]), tensor([3.])]
    """
    _check_alike(new, old)
    groups = [[i] for i in range(len(new))] if layers is None else [list(group) for group in layers]
    if sorted(i for group in groups for i in group) != list(range(len(new))):
        raise ValueError(
            f"layers={groups} should hold each position from 0 to {len(new) - 1} exactly once"
        )
    filled = _filled(new, old)
    expected = [tuple(filled[i].shape) if i in filled else None for i in range(len(new))]
    for task, gradients in enumerate(old):
        shapes = [None if t is None else tuple(t.shape) for t in gradients]
        if len(shapes) != len(new) or any(
            s is not None and s != e for s, e in zip(shapes, expected, strict=True)
        ):
            raise ValueError(
                f"old[{task}] has shapes {shapes} and new {expected}; they should be the same"
            )
    groups = [used for group in groups if (used := [i for i in group if i in filled])]
    flat_new = [_flat([filled[i] for i in group]) for group in groups]
    flat_old = []
    for group, g in zip(groups, flat_new, strict=True):
        G = g.new_zeros((len(old), len(g)))
        for row, gradients in zip(G, old, strict=True):
            row.copy_(_flat([_or_zero(gradients[i], filled[i]) for i in group]))
        flat_old.append(G)
    updates: list[Tensor | None] = [None] * len(new)
    for group, w in zip(groups, gp.project_layers(flat_new, flat_old, method), strict=True):
        sizes = [filled[i].numel() for i in group]
        for i, part in zip(group, torch.split(w, sizes), strict=True):
            updates[i] = part.view(filled[i].shape)
    return cast("list[Gradient]", updates)


def _filled(
    new: Sequence[Tensor | None], old: Sequence[Sequence[Tensor | None]]
) -> dict[int, Tensor]:
    """Return the new gradients by position, zero where only old tasks have one."""
    found = {}
    for i, column in enumerate(zip_longest(new, *old)):
        known = [gradient for gradient in column if gradient is not None]
        if known:
            found[i] = torch.zeros_like(known[0]) if column[0] is None else known[0]
    return found


def _check_alike(new: Sequence[Tensor | None], old: Sequence[Sequence[Tensor | None]]) -> None:
    """Raise unless all are lists, of gradients of one dtype and one device."""
    names: dict[str, Any] = {"new": new, **{f"old[{task}]": each for task, each in enumerate(old)}}
    first = None
    for name, gradients in names.items():
        if isinstance(gradients, Tensor):  # whose rows would pass for parameters
            raise TypeError(f"{name} is a Tensor; pass a list with one tensor per parameter")
        for i, t in enumerate(gradients):
            if t is None:
                continue
            if not isinstance(t, Tensor):
                raise TypeError(f"{name}[{i}] is a {type(t).__name__}; pass tensors, or None")
            first = first or (f"{name}[{i}]", t)
            if (t.dtype, t.device) != (first[1].dtype, first[1].device):
                raise TypeError(
                    f"{name}[{i}] is {t.dtype} on {t.device} and {first[0]} {first[1].dtype} on "
                    f"{first[1].device}; bring all to one, or use Projector, which takes a mixture"
                )


def _flat(tensors: Sequence[Tensor]) -> Tensor:
    return torch.cat([t.detach().reshape(-1) for t in tensors])


def _or_zero(gradient: Tensor | None, like: Tensor) -> Tensor:
    return torch.zeros_like(like) if gradient is None else gradient
