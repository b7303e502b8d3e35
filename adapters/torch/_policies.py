"""The policies of an episodic memory that is full, one small function per policy.

A policy receives an `Offer` and returns two index tensors of one length: `slots`, the places in the
memory that are written, and `sources`, the offered samples that go there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from gradproj.adapters.torch.selection import herd

Placement = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Offer:
    """Samples that are offered to the memory of one task."""

    count: int  # samples offered
    size: int  # slots in use
    seen: int  # samples ever offered before these
    capacity: int
    labels: Tensor  # of the slots in use, then of the offered samples
    features: Callable[[], Tensor]  # the same, (size + count, F)
    generator: torch.Generator

    def draw(self, bound: int) -> int:
        """Draw one of `bound` numbers."""
        return int(torch.randint(bound, (), generator=self.generator, device="cpu"))


def last(offer: Offer) -> Placement:
    """Keep the latest: a ring."""
    kept = min(offer.count, offer.capacity)
    sources = torch.arange(offer.count - kept, offer.count, device="cpu")
    return (offer.seen + sources) % offer.capacity, sources


def random(offer: Offer) -> Placement:
    """Keep a random choice of the stored and the offered samples, drawn again at each call."""
    everything = offer.size + offer.count
    order = torch.randperm(everything, generator=offer.generator, device="cpu")
    chosen = order[: offer.capacity]
    sources = chosen[chosen >= offer.size] - offer.size
    stays = torch.zeros(offer.capacity, dtype=torch.bool, device="cpu")
    stays[chosen[chosen < offer.size]] = True
    return torch.nonzero(~stays).flatten()[: len(sources)], sources


def reservoir(offer: Offer) -> Placement:
    """Keep a uniform choice of all samples ever offered (algorithm R)."""
    owner: dict[int, int] = {}
    for source in range(offer.count):
        place = offer.seen + source
        slot = place if place < offer.capacity else offer.draw(place + 1)
        if slot < offer.capacity:
            owner[slot] = source
    return _indices(owner), _indices(owner.values())


def herding(offer: Offer) -> Tensor:
    """Keep, of each label, the samples whose running mean stays closest to the label's mean.

    Unlike the other policies it also orders the stored samples, so that the first k samples of a
    label are always its best k. It returns the indices of stored, then offered samples in their
    new order.
    """
    features = torch.nn.functional.normalize(offer.features().double(), dim=1)
    ranks = torch.empty(len(features), dtype=torch.long, device="cpu")
    for label in set(offer.labels.tolist()):
        mine = torch.nonzero(offer.labels == label).flatten()
        if mine[-1] < offer.size:  # nothing new: the order stands
            ranks[mine] = torch.arange(len(mine), device="cpu")
        else:
            ranks[mine[herd(features[mine])]] = torch.arange(len(mine), device="cpu")
    # Best of every label first, then the second best, …: cutting anywhere is balanced.
    return torch.argsort(ranks, stable=True)[: offer.capacity]


def _indices(numbers: Iterable[int]) -> Tensor:
    # On the CPU whatever torch's default device: the generator is there.
    return torch.tensor(list(numbers), dtype=torch.long, device="cpu")


PLACING: dict[str, Callable[[Offer], Placement]] = {
    "last": last,
    "random": random,
    "reservoir": reservoir,
}
