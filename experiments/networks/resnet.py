"""Residual networks of basic blocks, for small images and in the ImageNet layout."""

from collections.abc import Sequence
from typing import Literal, cast

import torch
from torch import nn
from torch.nn import functional

from gradproj.experiments.networks.network import Network, make_head

__all__ = ["BasicBlock", "resnet"]

Shortcut = Literal["conv", "pad"]


class BasicBlock(nn.Module):
    """Two 3×3 convolutions with batch norm, plus a shortcut.

    Parameters
    ----------
    in_channels, channels, stride : int
    shortcut : "conv" or "pad"
        Where the shape changes: a 1×1 convolution with batch norm, or plain subsampling with zero
        channels added (no parameters). Elsewhere the shortcut is the identity.
    last_relu : bool
        Whether the sum is rectified.

    Examples
    --------
    >>> BasicBlock(4, 8, stride=2, shortcut="pad")(torch.zeros(1, 4, 6, 6)).shape
    torch.Size([1, 8, 3, 3])
    """

    def __init__(
        self,
        in_channels: int,
        channels: int,
        stride: int = 1,
        shortcut: Shortcut = "conv",
        last_relu: bool = True,
    ) -> None:
        super().__init__()
        self.conv1 = _conv(in_channels, channels, 3, stride)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = _conv(channels, channels, 3, 1)
        self.bn2 = nn.BatchNorm2d(channels)
        self.last_relu = last_relu
        self.downsample: nn.Module = nn.Identity()
        if stride != 1 or in_channels != channels:
            if shortcut == "conv":
                self.downsample = nn.Sequential(
                    _conv(in_channels, channels, 1, stride), nn.BatchNorm2d(channels)
                )
            elif shortcut == "pad":
                self.downsample = _Pad(channels - in_channels, stride)
            else:
                raise ValueError(f"shortcut={shortcut!r} is not known; use 'conv' or 'pad'")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Run the block on images of shape (n, in_channels, H, W)."""
        y = functional.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y)) + self.downsample(x)
        return functional.relu(y) if self.last_relu else cast(torch.Tensor, y)


class _Pad(nn.Module):
    def __init__(self, extra: int, stride: int) -> None:
        super().__init__()
        self.extra, self.stride = extra, stride

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, 0, self.extra))


def resnet(
    outputs: int,
    input_shape: tuple[int, int, int],
    nf: int = 64,
    blocks: Sequence[int] = (2, 2, 2, 2),
    stem: Literal["small", "imagenet"] = "small",
    shortcut: Shortcut = "conv",
    last_relu: bool = True,
    head: str = "linear",
) -> Network:
    """Residual network with stages of nf, 2·nf, 4·nf, … channels.

    Parameters
    ----------
    outputs : int
    input_shape : tuple of int
        (C, H, W).
    nf : int
        Channels of the first stage.
    blocks : sequence of int
        Basic blocks of each stage. Every stage except the first halves the image.
    stem : "small" or "imagenet"
        "small": 3×3 convolution, no pooling, torch's default initialisation. "imagenet": 7×7
        convolution of stride 2 and max pooling, convolutions drawn from normal(0, 2/(k²·out)).
    shortcut, last_relu
        As `BasicBlock`; `last_relu` concerns the very last block, which LUCIR leaves linear.
    head : "linear" or "cosine"

    Examples
    --------
    >>> sum(p.numel() for p in resnet(100, (3, 32, 32), nf=20).parameters())
    1109240
    """
    if stem not in ("small", "imagenet"):
        raise ValueError(f"stem={stem!r} is not known; use 'small' or 'imagenet'")
    small = stem == "small"
    trunk: dict[str, nn.Module] = {
        "conv1": _conv(input_shape[0], nf, 3, 1) if small else _conv(input_shape[0], nf, 7, 2),
        "bn1": nn.BatchNorm2d(nf),
        "relu": nn.ReLU(),
    }
    if not small:
        trunk["maxpool"] = nn.MaxPool2d(3, stride=2, padding=1)
    channels = nf
    for i, count in enumerate(blocks):
        stage = nn.Sequential()
        for k in range(count):
            first, last = k == 0, i == len(blocks) - 1 and k == count - 1
            stage.append(
                BasicBlock(
                    channels,
                    nf * 2**i,
                    stride=2 if first and i > 0 else 1,
                    shortcut=shortcut,
                    last_relu=last_relu or not last,
                )
            )
            channels = nf * 2**i
        trunk[f"layer{i + 1}"] = stage
    trunk["pool"] = nn.AdaptiveAvgPool2d(1)
    net = Network(trunk, make_head(head, channels, outputs))
    if not small:
        for module in net.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    return net


def _conv(in_channels: int, channels: int, size: int, stride: int) -> nn.Conv2d:
    return nn.Conv2d(in_channels, channels, size, stride, padding=size // 2, bias=False)
