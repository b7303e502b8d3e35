"""The weights and gradients of a model as one vector, for methods that weigh them one by one."""

from __future__ import annotations

import torch
from torch import Tensor, nn

__all__ = ["flat_gradient", "flat_weights", "set_gradient"]


def flat_weights(model: nn.Module) -> Tensor:
    """Copy all parameters into one vector."""
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


def flat_gradient(model: nn.Module) -> Tensor:
    """Copy all gradients into one vector; a parameter that has none counts as zero."""
    return torch.cat(
        [
            (torch.zeros_like(p) if p.grad is None else p.grad).reshape(-1)
            for p in model.parameters()
        ]
    )


def set_gradient(model: nn.Module, vector: Tensor) -> None:
    """Make the pieces of one vector the gradients of the model."""
    parameters = list(model.parameters())
    for p, piece in zip(
        parameters, torch.split(vector, [p.numel() for p in parameters]), strict=True
    ):
        p.grad = piece.view_as(p)
