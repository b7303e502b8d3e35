"""The fully connected network of the MNIST experiments."""

from collections.abc import Sequence
from itertools import pairwise

from torch import nn

from gradproj.experiments.networks.network import Network, make_head

__all__ = ["mlp"]


def mlp(
    outputs: int,
    input_shape: tuple[int, int, int],
    hidden: Sequence[int] = (100, 100),
    head: str = "linear",
) -> Network:
    """Fully connected layers with ReLU; Xavier-uniform weights and zero biases.

    Parameters
    ----------
    outputs : int
    input_shape : tuple of int
        (C, H, W); images are flattened.
    hidden : sequence of int
        Widths of the hidden layers: (100, 100) in GEM and the paper, (5, 5) for its Independent,
        (256, 256) in A-GEM.
    head : "linear" or "cosine"

    Examples
    --------
    >>> sum(p.numel() for p in mlp(10, (1, 28, 28)).parameters())
    89610
    """
    if not isinstance(hidden, Sequence) or any(width < 1 for width in hidden):
        raise ValueError(f"hidden={hidden} must be a list of widths from 1 on")
    channels, height, width = input_shape
    widths = [channels * height * width, *hidden]
    trunk: dict[str, nn.Module] = {"flatten": nn.Flatten()}
    for i, (fan_in, fan_out) in enumerate(pairwise(widths), start=1):
        trunk[f"fc{i}"] = nn.Linear(fan_in, fan_out)
        trunk[f"relu{i}"] = nn.ReLU()
    net = Network(trunk, make_head(head, widths[-1], outputs))
    for module in net.modules():
        if isinstance(module, nn.Linear):
            nn.init.xavier_uniform_(module.weight)
            nn.init.zeros_(module.bias)
    return net
