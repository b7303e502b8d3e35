"""The base of all networks: a trunk that computes features, and a head."""

from collections.abc import Mapping
from typing import cast

import torch
from torch import nn
from torch.nn import functional

__all__ = ["CosineHead", "Network", "make_head"]


class Network(nn.Module):
    """Trunk modules run one after the other, then the head.

    The trunk's modules are direct children, so that grouping parameters by child gives the stages
    of a residual network.

    Parameters
    ----------
    trunk : mapping from name to module
        In the order in which they run; the last one's output, flattened, is the feature vector.
    head : nn.Linear or CosineHead
        Scores all outputs from the features.

    Examples
    --------
    >>> net = Network({"fc1": nn.Linear(4, 3), "relu1": nn.ReLU()}, nn.Linear(3, 2))
    >>> net.features(torch.zeros(5, 4)).shape, net(torch.zeros(5, 4)).shape
    (torch.Size([5, 3]), torch.Size([5, 2]))
    """

    def __init__(self, trunk: Mapping[str, nn.Module], head: "nn.Linear | CosineHead") -> None:
        super().__init__()
        for name, module in trunk.items():
            self.add_module(name, module)
        self._trunk = tuple(trunk)
        self.head = head

    def prepend(self, name: str, module: nn.Module) -> None:
        """Put a module in front of the trunk."""
        self.add_module(name, module)
        self._trunk = (name, *self._trunk)

    def features(self, x: torch.Tensor) -> torch.Tensor:
        """Feature vectors of a batch of images, shape (n, head.in_features)."""
        for name in self._trunk:
            x = getattr(self, name)(x)
        return x.flatten(1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Scores of all outputs, shape (n, outputs)."""
        return cast(torch.Tensor, self.head(self.features(x)))


class CosineHead(nn.Module):
    """Scores are cosines between features and class vectors, times one learned scale (LUCIR).

    Examples
    --------
    >>> head = CosineHead(8, 3)
    >>> bool((head(torch.randn(4, 8)).abs() <= head.scale + 1e-6).all())
    True
    """

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        self.weight = nn.Parameter(torch.empty(out_features, in_features))
        self.scale = nn.Parameter(torch.ones(()))
        bound = in_features**-0.5
        nn.init.uniform_(self.weight, -bound, bound)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Scaled cosines, shape (n, out_features)."""
        x, weight = functional.normalize(x, dim=1), functional.normalize(self.weight, dim=1)
        return self.scale * functional.linear(x, weight)


def make_head(
    kind: str, in_features: int, outputs: int, *, bias: bool = True
) -> nn.Linear | CosineHead:
    """Make the head of a network by name: "linear" or "cosine", which never has a bias."""
    if kind == "linear":
        return nn.Linear(in_features, outputs, bias=bias)
    if kind == "cosine":
        return CosineHead(in_features, outputs)
    raise ValueError(f"head={kind!r} is not known; use 'linear' or 'cosine'")
