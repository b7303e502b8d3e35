"""Standardised pixels, as the first module of a network: after augmentation, at test time too."""

from collections.abc import Mapping, Sequence

import torch
from torch import nn

__all__ = ["CONSTANTS", "Normalise"]

# Mean and standard deviation of each channel. Two deviations are in use for CIFAR-100: those of
# its pixels, and smaller ones that iCaRL's successors pass on ("cifar100-lucir").
CONSTANTS: Mapping[str, tuple[Sequence[float], Sequence[float]]] = {
    "cifar100": ((0.5071, 0.4866, 0.4409), (0.2673, 0.2564, 0.2762)),
    "cifar100-lucir": ((0.5071, 0.4866, 0.4409), (0.2009, 0.1984, 0.2023)),
    "mnist": ((0.1307,), (0.3081,)),
}


class Normalise(nn.Module):
    """Subtract the mean and divide by the deviation of each channel.

    Parameters
    ----------
    name : str
        A key of `CONSTANTS`.
    channels : int
        Channels of the images.

    Examples
    --------
    >>> grey = torch.full((1, 3, 2, 2), 0.5)
    >>> [round(value, 2) for value in Normalise("cifar100", 3)(grey)[0, :, 0, 0].tolist()]
    [-0.03, 0.05, 0.21]
    """

    mean: torch.Tensor
    deviation: torch.Tensor

    def __init__(self, name: str, channels: int) -> None:
        super().__init__()
        if name not in CONSTANTS:
            known = ", ".join(repr(key) for key in CONSTANTS)
            raise ValueError(f"normalise={name!r} is not known; use {known}")
        for label, values in zip(("mean", "deviation"), CONSTANTS[name], strict=True):
            if len(values) != channels:
                raise ValueError(
                    f"normalise={name!r} is for {len(values)} channels; these images have "
                    f"{channels}: leave it out"
                )
            self.register_buffer(label, torch.tensor(values).view(-1, 1, 1), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Standardise images of shape (n, channels, H, W)."""
        return (x - self.mean) / self.deviation
