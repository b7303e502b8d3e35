"""Image transformations that only move pixels, stored as one index per pixel."""

import numpy as np
import torch

__all__ = ["move_pixels", "rotation_map"]


def rotation_map(height: int, width: int, degrees: float) -> torch.Tensor:
    """Return, for each pixel of the rotated image, the index of its source pixel; −1 is black.

    A nearest-neighbour rotation only moves pixels, so it is enough to rotate one image of pixel
    indices with Pillow.

    Examples
    --------
    >>> rotation_map(2, 2, 90.0).tolist()
    [1, 3, 0, 2]
    """
    from PIL import Image

    numbers = np.arange(1, height * width + 1, dtype=np.int32).reshape(height, width)
    turned = np.asarray(Image.fromarray(numbers).rotate(degrees))
    return torch.from_numpy(turned.reshape(-1).astype(np.int64) - 1)


def move_pixels(images: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
    """Fill pixel i of every image from its pixel source[i], or with black where that is −1.

    Examples
    --------
    >>> move_pixels(torch.tensor([[[[5, 6], [7, 8]]]]), torch.tensor([3, -1, 1, 0])).tolist()
    [[[[8, 0], [6, 5]]]]
    """
    moved = images.flatten(0, 1).flatten(1).index_select(1, source.clamp(min=0))
    black = source < 0
    if black.any():
        moved[:, black] = 0
    return moved.reshape(images.shape)
