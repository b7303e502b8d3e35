"""Draws without replacement, in constant time where there is much to draw from."""

from __future__ import annotations

import torch
from torch import Tensor

# From this size on, no permutation is made of everything, which takes 10 ms for a million. Below it
# the draws are those of earlier versions, bit for bit: the largest memory of a preset has 5,120
# samples.
MANY = 2**14


def draw(size: int, n: int, generator: torch.Generator) -> Tensor:
    """Draw n of the numbers 0, …, size - 1 without replacement."""
    # The loop below takes about 40 times as long per number as a permutation does.
    if size < MANY or n > size // 64:
        return torch.randperm(size, generator=generator, device="cpu")[:n]
    # The first n steps of a shuffle. `moved` has the places that do not hold their own number.
    # The remainder of 63 random bits favours a number by a factor of at most 1 + size / 2**63.
    bits = torch.randint(2**63 - 1, (n,), generator=generator, device="cpu").tolist()
    moved: dict[int, int] = {}
    chosen = []
    for place, number in enumerate(bits):
        other = place + number % (size - place)
        chosen.append(moved.get(other, other))
        moved[other] = moved.get(place, place)
    return torch.tensor(chosen, dtype=torch.long, device="cpu")
