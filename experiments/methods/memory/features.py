"""Features of many images, computed in batches."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from gradproj.experiments.methods.learner import BATCH
from gradproj.experiments.networks import Network

__all__ = ["embed", "require_network"]


def require_network(model: nn.Module, name: str) -> None:
    """Raise unless the model has separate features, by which exemplars are chosen."""
    if not isinstance(model, Network):
        raise ValueError(
            f"network='{name}' makes a {type(model).__name__}; where the task is unknown it must "
            "make a gradproj.experiments.networks.Network, which has features and a head"
        )


@torch.no_grad()
def embed(network: Network, x: Tensor, batch: int = BATCH) -> Tensor:
    """Return the features of images, on the network's device, in evaluation mode.

    Examples
    --------
    >>> from gradproj.experiments import networks
    >>> embed(networks.build("mlp", 10, (1, 8, 8)), torch.zeros(3, 1, 8, 8)).shape
    torch.Size([3, 100])
    """
    was_training, device = network.training, network.head.weight.device
    network.eval()
    pieces = [network.features(piece.to(device)) for piece in torch.split(x, batch)]
    network.train(was_training)
    return torch.cat(pieces)
