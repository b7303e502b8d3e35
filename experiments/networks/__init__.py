"""The networks of the experiments, by name, seeded without touching torch's global generator."""

import inspect
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, cast

import torch
from torch import nn

from gradproj.experiments.common import registry
from gradproj.experiments.common.registry import nearest
from gradproj.experiments.common.seeds import seeded
from gradproj.experiments.networks.imagenet import imagenet_resnet18
from gradproj.experiments.networks.layout import lay_out
from gradproj.experiments.networks.mlp import mlp
from gradproj.experiments.networks.network import CosineHead, Network
from gradproj.experiments.networks.normalise import Normalise
from gradproj.experiments.networks.resnet import resnet
from gradproj.experiments.networks.wide_resnet import wide_resnet

__all__ = ["NETWORKS", "CosineHead", "Network", "build", "check_options", "find"]

NETWORKS: dict[str, Callable[..., Network]] = {
    "mlp": mlp,
    "resnet18-small": partial(resnet, nf=20),
    "resnet18": imagenet_resnet18,
    "resnet18-cifar": resnet,
    "resnet34-cifar": partial(resnet, blocks=(3, 4, 6, 3)),
    "resnet32": partial(resnet, nf=16, blocks=(5, 5, 5), shortcut="pad"),
    "wrn-16-2": wide_resnet,
}


def build(
    name: str,
    outputs: int,
    input_shape: tuple[int, int, int],
    seed: int | torch.Generator = 0,
    **options: Any,
) -> Network:
    """Build a network by name.

    Parameters
    ----------
    name : str
        A key of `NETWORKS`, or your own function with the same first arguments, named as
        `module:function`.
    outputs : int
        Outputs of the head.
    input_shape : tuple of int
        (C, H, W) of one image.
    seed : int or torch.Generator
        Determines the initial weights. Torch's global generator does not change.
    **options
        Arguments of the network: `hidden`, `bias`, `init` (mlp), `nf`, `blocks`, `shortcut`,
        `last_relu` (residual networks), `depth`, `widen`, `dropout` (wrn-16-2), `head` (all),
        `normalise` (all; see `Normalise`).

    Returns
    -------
    Network
        With `.features(x)` and `.head`. Your own network may be any module if the task is known.

    Examples
    --------
    >>> net = build("resnet18-small", 10, (3, 32, 32), seed=1, nf=4)
    >>> net.head
    Linear(in_features=32, out_features=10, bias=True)
    """
    check_options(name, options)
    if outputs < 1:
        raise ValueError(f"outputs={outputs} must be at least 1")
    normalise = options.pop("normalise", None)
    with seeded(seed):
        network: nn.Module = find(name)(outputs, input_shape, **options)
    if not isinstance(network, nn.Module):
        raise TypeError(f"{name} returned a {type(network).__name__}; return a torch.nn.Module")
    if normalise is not None:
        first = Normalise(normalise, input_shape[0])
        if isinstance(network, Network):
            network.prepend("normalise", first)
        else:
            network = nn.Sequential(first, network)
    lay_out(network)
    return cast(Network, network)


def find(name: str) -> Callable[..., Network]:
    """Return the function that builds the network called `name`."""
    return registry.find(name, NETWORKS, "network")


def check_options(name: str, options: Iterable[str]) -> None:
    """Raise a ValueError if the network or one of the names of its options is not known.

    Examples
    --------
    >>> check_options("mlp", {"hiden": [5, 5]})
    Traceback (most recent call last):
    ValueError: option of mlp 'hiden' is not known; did you mean 'hidden'?
    """
    parameters = list(inspect.signature(find(name)).parameters.values())[2:]
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return  # It takes any.
    known = [*(parameter.name for parameter in parameters), "normalise"]
    for option in options:
        if option not in known:
            raise ValueError(nearest(option, known, f"option of {name}"))
