"""The fully connected network of the MNIST experiments."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Literal

from torch import nn

from gradproj.experiments.networks.network import Network, make_head

__all__ = ["mlp"]


def mlp(
    outputs: int,
    input_shape: tuple[int, int, int],
    hidden: Sequence[int] = (100, 100),
    head: str = "linear",
    bias: bool = True,
    init: Literal["xavier", "torch"] = "xavier",
) -> Network:
    """Build fully connected layers with ReLU.

    Parameters
    ----------
    outputs : int
    input_shape : tuple of int
        (C, H, W); images are flattened.
    hidden : sequence of int
        Widths of the hidden layers: (100, 100) in GEM and the paper, (5, 5) for its Independent,
        (256, 256) in A-GEM.
    head : "linear" or "cosine"
    bias : bool
        Whether the linear layers have biases. GPM's published network has none.
    init : "xavier" or "torch"
        Xavier-uniform weights and zero biases, as in GEM, or torch's default initialisation, as in
        GPM.

    Examples
    --------
    >>> sum(p.numel() for p in mlp(10, (1, 28, 28)).parameters())
    89610
    >>> sum(p.numel() for p in mlp(10, (1, 28, 28), bias=False).parameters())
    89400
    """
    if init not in ("xavier", "torch"):
        raise ValueError(f"init={init!r} is not known; use 'xavier' or 'torch'")
    if not isinstance(hidden, Sequence) or any(width < 1 for width in hidden):
        raise ValueError(f"hidden={hidden} is invalid: expected a list of widths >= 1")
    channels, height, width = input_shape
    widths = [channels * height * width, *hidden]
    trunk: dict[str, nn.Module] = {"flatten": nn.Flatten()}
    for i, (fan_in, fan_out) in enumerate(pairwise(widths), start=1):
        trunk[f"fc{i}"] = nn.Linear(fan_in, fan_out, bias=bias)
        trunk[f"relu{i}"] = nn.ReLU()
    net = Network(trunk, make_head(head, widths[-1], outputs, bias=bias))
    if init == "xavier":
        for module in net.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                if bias:
                    nn.init.zeros_(module.bias)
    return net
