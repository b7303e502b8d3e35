"""Orders in which samples represent their class best."""

from __future__ import annotations

import torch
from torch import Tensor


def herd(features: Tensor, count: int | None = None) -> Tensor:
    """Order samples greedily, so that the mean of each prefix is as near as possible to the mean.

    Parameters
    ----------
    features : Tensor (n, F)
        One row per sample.
    count : int, optional
        Stop after this number of samples, which saves time; the first samples are the same.

    Returns
    -------
    Tensor
        Indices of the samples, on the CPU.

    References
    ----------
    Rebuffi et al., iCaRL: incremental classifier and representation learning, CVPR 2017.

    Examples
    --------
    >>> herd(torch.tensor([[0.0], [4.0], [5.0]])).tolist()
    [1, 0, 2]
    """
    if not (isinstance(features, Tensor) and features.ndim == 2 and features.is_floating_point()):
        found = (
            f"{features.dtype} of shape {tuple(features.shape)}"
            if isinstance(features, Tensor)
            else f"a {type(features).__name__}"
        )
        raise TypeError(f"features is {found}: expected a floating-point tensor of shape (n, F)")
    mean = features.mean(0)
    total = torch.zeros_like(mean)
    left = torch.ones(len(features), dtype=torch.bool, device=features.device)
    order = []
    for k in range(1, len(features[:count]) + 1):
        distance = ((total + features) / k - mean).square().sum(1)
        best = int(torch.where(left, distance, torch.inf).argmin())
        order.append(best)
        left[best] = False
        total += features[best]
    # On the CPU whatever torch's default device: the samples are chosen there.
    return torch.tensor(order, dtype=torch.long, device="cpu")
