"""A memory of exemplars with a fixed size in total or per class."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from gradproj.adapters.torch import herd

__all__ = ["Exemplars"]

Features = Callable[[Tensor], Tensor]
POLICIES = ("herding", "random", "kmeans", "last")


class Exemplars:
    """Images of each class, the most representative first, so that shrinking cuts the end.

    Parameters
    ----------
    total : int
        Images of all classes together, shared equally. A remainder stays unused.
    per_class : int
        Images per class, whatever the number of classes. 0 shares `total`.
    policy : "herding", "random", "kmeans" or "last"
        Which images of a class are kept. "herding": those whose running mean of normalized
        features stays nearest to the class mean (iCaRL). "kmeans": those nearest to the centers of
        k-means, where k is the number of kept images, the largest cluster first (TPL). "last": the
        latest.
    seed : int
        Seed of random choices.

    Examples
    --------
    >>> store = Exemplars(total=4, policy="last")
    >>> store.choose(torch.arange(6.0).view(6, 1), torch.tensor([0, 0, 0, 1, 1, 1]), store.share(2))
    >>> x, y = store.all()
    >>> x.flatten().tolist(), y.tolist()
    ([2.0, 1.0, 5.0, 4.0], [0, 0, 1, 1])
    """

    def __init__(
        self, total: int = 2000, per_class: int = 0, policy: str = "herding", seed: int = 0
    ) -> None:
        if policy not in POLICIES:
            known = ", ".join(repr(name) for name in POLICIES)
            raise ValueError(f"memory.policy={policy!r} is not for exemplars; use {known}")
        self.total, self.per_class, self.policy = total, per_class, policy
        self.generator = torch.Generator().manual_seed(seed)
        self.images: dict[int, Tensor] = {}
        self._stacked: tuple[Tensor, Tensor] | None = None

    def __len__(self) -> int:
        return sum(len(images) for images in self.images.values())

    def share(self, classes: int) -> int:
        """Return the number of images per class for a number of classes."""
        share = self.per_class or self.total // classes
        if share < 1:
            raise ValueError(
                f"memory.total={self.total} leaves no exemplar for each of {classes} classes; "
                f"use at least {classes}"
            )
        return share

    def admit(self, x: Tensor, y: Tensor, classes: int, features: Features | None = None) -> None:
        """Choose exemplars of new classes; there are now `classes` classes in total."""
        self.reduce(self.share(classes))
        self.choose(x, y, self.share(classes), features)

    def choose(self, x: Tensor, y: Tensor, count: int, features: Features | None = None) -> None:
        """Keep `count` images of each class in `y`, replacing those kept before."""
        self._stacked = None
        for label in sorted(set(y.tolist())):
            mine = x[y == label]
            order = self._order(mine, min(count, len(mine)), features)
            self.images[label] = mine[order[:count].to(mine.device)].clone()

    def reduce(self, count: int) -> None:
        """Cut each class down to its first `count` images."""
        self.images = {label: images[:count].clone() for label, images in self.images.items()}
        self._stacked = None

    def all(self) -> tuple[Tensor, Tensor]:
        """Return all images and their labels, class by class."""
        if self._stacked is None:
            sizes = torch.tensor([len(images) for images in self.images.values()])
            labels = torch.tensor(list(self.images), dtype=torch.int64)
            images = torch.cat(list(self.images.values()))
            self._stacked = images, labels.repeat_interleave(sizes)
        return self._stacked

    def state_dict(self) -> dict[str, Any]:
        """Return images and generator as tensors and plain values."""
        return {"images": dict(self.images), "generator": self.generator.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state that `state_dict` returned."""
        self.images, self._stacked = dict(state["images"]), None
        self.generator.set_state(state["generator"])

    def _order(self, images: Tensor, count: int, features: Features | None) -> Tensor:
        if self.policy == "last":
            return torch.arange(len(images)).flip(0)
        if self.policy == "random":
            return torch.randperm(len(images), generator=self.generator)
        found = images.flatten(1) if features is None else features(images)
        unit = functional.normalize(found.cpu().double(), dim=1)
        order = herd if self.policy == "herding" else self._nearest_to_centres
        return order(unit, count)

    def _nearest_to_centres(self, points: Tensor, count: int) -> Tensor:
        from sklearn.cluster import KMeans

        seed = int(torch.randint(2**31, (), generator=self.generator))
        # Dead units give equal points, so there may be fewer distinct points than centers.
        count = min(count, len(np.unique(points.numpy(), axis=0)))
        found = KMeans(count, n_init=1, random_state=seed).fit(points.numpy())
        sizes = np.bincount(found.labels_, minlength=count)
        distances = torch.cdist(points, torch.from_numpy(found.cluster_centers_))
        chosen: list[int] = []
        for centre in np.argsort(-sizes, kind="stable"):
            # An image represents at most one center.
            distances[chosen] = torch.inf
            chosen.append(int(distances[:, centre].argmin()))
        return torch.tensor(chosen)
