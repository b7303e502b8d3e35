"""Wide residual networks (pre-activation blocks, dropout inside)."""

from typing import cast

import torch
from torch import nn
from torch.nn import functional

from gradproj.experiments.networks.network import Network, make_head

__all__ = ["wide_resnet"]


class _WideBlock(nn.Module):
    def __init__(self, in_channels: int, channels: int, stride: int, dropout: float) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(in_channels)
        self.conv1 = nn.Conv2d(in_channels, channels, 3, stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.dropout = nn.Dropout(dropout)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.same = stride == 1 and in_channels == channels
        if not self.same:
            self.shortcut = nn.Conv2d(in_channels, channels, 1, stride, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = functional.relu(self.bn1(x))
        # Where the shape changes, the shortcut too starts from the activated input.
        x = x if self.same else self.shortcut(y)
        y = self.conv2(self.dropout(functional.relu(self.bn2(self.conv1(y)))))
        return cast(torch.Tensor, x + y)


def wide_resnet(
    outputs: int,
    input_shape: tuple[int, int, int],
    depth: int = 16,
    widen: int = 2,
    dropout: float = 0.3,
    head: str = "linear",
) -> Network:
    """WRN-depth-widen: three stages of 16, 32, 64 times `widen` channels.

    Parameters
    ----------
    outputs : int
    input_shape : tuple of int
        (C, H, W).
    depth : int
        4 more than a multiple of 6.
    widen : int
        Factor on the channels.
    dropout : float
        Between the two convolutions of a block.
    head : "linear" or "cosine"

    Examples
    --------
    >>> sum(p.numel() for p in wide_resnet(100, (3, 32, 32)).parameters())
    703284
    """
    blocks, remainder = divmod(depth - 4, 6)
    if remainder or blocks < 1:
        raise ValueError(f"depth={depth} must be 4 more than a multiple of 6: 10, 16, 22, 28, …")
    trunk: dict[str, nn.Module] = {"conv1": nn.Conv2d(input_shape[0], 16, 3, padding=1, bias=False)}
    channels = 16
    for i in range(3):
        stage = nn.Sequential()
        for k in range(blocks):
            width = 16 * 2**i * widen
            stage.append(_WideBlock(channels, width, 2 if k == 0 and i > 0 else 1, dropout))
            channels = width
        trunk[f"layer{i + 1}"] = stage
    trunk |= {"bn": nn.BatchNorm2d(channels), "relu": nn.ReLU(), "pool": nn.AdaptiveAvgPool2d(1)}
    net = Network(trunk, make_head(head, channels, outputs))
    for module in net.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    return net
