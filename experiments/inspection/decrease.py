"""The decrease of the old losses along whole-network and layerwise updates (Eqs. 12 and 13)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

import gradproj as gp
from gradproj.adapters.torch import Layers, group_parameters, keep_running_statistics
from gradproj.experiments.inspection.gradients import Array, Batch, Loss, gradients_of

__all__ = ["UPDATES", "Decrease", "measure_decrease"]

# The two updates that are compared; the first axis of the arrays.
UPDATES = ("whole network", "layerwise")


@dataclass(frozen=True, eq=False)
class Decrease:
    """Decrease of the mean loss of the old tasks, from the same state for both updates.

    Attributes
    ----------
    lengths : array (S,)
        Step lengths η.
    measured : array (2, moments, S)
        Loss before the step minus loss after it, for each of `UPDATES`.
    predicted : array (2, moments, S)
        The first-order decrease η ḡ·w, where ḡ is the mean of the old gradients.
    """

    lengths: Array
    measured: Array
    predicted: Array


def measure_decrease(
    model: nn.Module,
    loss: Loss,
    moments: Iterable[tuple[Batch, Sequence[Batch]]],
    lengths: Sequence[float],
    layers: Layers = "module",
) -> Decrease:
    """Measure how far steps along both updates reduce the old losses.

    Both updates solve Eq. 11 without a replay term: once for the whole network, and once for each
    layer. The model is left unchanged.

    Parameters
    ----------
    model, loss, moments, layers
        As for `measure`.
    lengths : sequence of float
        Step lengths η.

    Examples
    --------
    >>> model = nn.Linear(2, 1, bias=False)
    >>> old = [(torch.tensor([[1.0, 0.0]]),), (torch.tensor([[1.0, 0.2]]),)]
    >>> new = (torch.tensor([[1.0, 1.0]]),)
    >>> found = measure_decrease(model, lambda model, x: model(x).sum(), [(new, old)], [0.1])
    >>> bool(np.allclose(found.measured, found.predicted, atol=1e-6))  # the losses are linear
    True
    """
    named = dict(model.named_parameters())
    groups = list(group_parameters(model, layers).values())
    order = [name for members in groups for name in members]
    measured, predicted = [], []
    for new, old in moments:
        rows = [gradients_of(model, loss, batch, named) for batch in (*old, new)]
        parts = [
            np.stack([np.concatenate([r[m] for m in members]) for r in rows]) for members in groups
        ]
        whole = np.concatenate(parts, axis=1)
        updates = (
            gp.project(whole[-1], whole[:-1]),
            np.concatenate(gp.project_layers([p[-1] for p in parts], [p[:-1] for p in parts])),
        )
        slopes = [float(whole[:-1].mean(axis=0) @ w) for w in updates]
        predicted.append([[eta * slope for eta in lengths] for slope in slopes])
        before = _old_loss(model, loss, old)
        measured.append(
            [
                [before - _loss_after(model, loss, old, named, order, eta * w) for eta in lengths]
                for w in updates
            ]
        )
    return Decrease(
        np.asarray(lengths, dtype=np.float64),
        np.moveaxis(np.array(measured), 0, 1),
        np.moveaxis(np.array(predicted), 0, 1),
    )


def _old_loss(model: nn.Module, loss: Loss, old: Sequence[Batch]) -> float:
    with torch.no_grad(), keep_running_statistics(model):
        return float(np.mean([float(loss(model, *batch)) for batch in old]))


def _loss_after(
    model: nn.Module,
    loss: Loss,
    old: Sequence[Batch],
    named: dict[str, nn.Parameter],
    order: Sequence[str],
    step: Array,
) -> float:
    """Return the old loss after subtracting `step`, and restore the parameters."""
    kept = {name: named[name].detach().clone() for name in order}
    try:
        with torch.no_grad():
            start = 0
            for name in order:
                p = named[name]
                part = torch.from_numpy(step[start : start + p.numel()])
                p.sub_(part.reshape(p.shape).to(p))
                start += p.numel()
        return _old_loss(model, loss, old)
    finally:
        with torch.no_grad():
            for name, value in kept.items():
                named[name].copy_(value)
