"""Distillation losses: they keep a student's outputs or features close to those of a teacher."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

__all__ = [
    "distil",
    "distil_slices",
    "distil_weighted",
    "ensemble_target",
    "feature_distance",
    "margin_ranking",
    "soft_cross_entropy",
    "topology_loss",
    "unsureness",
]


def distil(
    teacher: Tensor, student: Tensor, temperature: float = 2.0, squared: bool = True
) -> Tensor:
    """Return the Kullback–Leibler divergence from the teacher's softened outputs, batch mean.

    With `squared` it is multiplied by T², the square of the temperature. It differs from the
    cross-entropy with the teacher's outputs as target by a constant, so the gradients are equal.

    Examples
    --------
    >>> round(float(distil(torch.tensor([[1.0, 2.0]]), torch.tensor([[4.0, 5.0]]))), 6)
    0.0
    """
    divergence = functional.kl_div(
        functional.log_softmax(student / temperature, 1),
        functional.softmax(teacher / temperature, 1),
        reduction="batchmean",
    )
    return divergence * temperature**2 if squared else divergence


def distil_weighted(
    teacher: Tensor, student: Tensor, weights: Tensor, temperature: float = 2.0
) -> Tensor:
    """Distil with one weight per sample: the mean of weight · T² · divergence.

    Examples
    --------
    >>> z, w = torch.tensor([[1.0, 2.0], [3.0, 1.0]]), torch.tensor([1.0, 3.0])
    >>> bool(distil_weighted(z, 0 * z, w) > distil(z, 0 * z))
    True
    """
    divergence = functional.kl_div(
        functional.log_softmax(student / temperature, 1),
        functional.softmax(teacher / temperature, 1),
        reduction="none",
    )
    return (weights * divergence.sum(1)).mean() * temperature**2


def distil_slices(
    teacher: Tensor, student: Tensor, slices: Sequence[slice], classes: int
) -> Tensor:
    """Distil each task's outputs separately, weighted by its share of `classes` (LwF, DR).

    Examples
    --------
    >>> z = torch.zeros(1, 4)
    >>> float(distil_slices(z, z, [slice(0, 2), slice(2, 4)], classes=4))
    0.0
    """
    terms = [
        (part.stop - part.start) / classes * distil(teacher[:, part], student[:, part])
        for part in slices
    ]
    return torch.stack(terms).sum()


def soft_cross_entropy(target: Tensor, logits: Tensor) -> Tensor:
    """Return the cross-entropy with probabilities as target, summed over the samples."""
    return -(target * functional.log_softmax(logits, 1)).sum()


def unsureness(logits: Tensor) -> Tensor:
    """Return the cross-entropy with the uniform distribution as target.

    It is smallest where all classes have the same probability.

    Examples
    --------
    >>> round(float(unsureness(torch.zeros(1, 4)).exp()), 4)
    4.0
    """
    return -functional.log_softmax(logits, 1).mean()


def ensemble_target(old: Tensor, new: Tensor) -> Tensor:
    """Join the probabilities of the old teacher and the expert in one distribution (GD's Q).

    The old teacher's most likely class keeps its probability. The rest is divided between the
    other old classes and the new classes in proportion to their numbers.

    Parameters
    ----------
    old : Tensor, shape (n, l)
        Probabilities of the old classes.
    new : Tensor, shape (n, r − l)
        Probabilities of the new classes.

    Examples
    --------
    >>> ensemble_target(torch.tensor([[0.6, 0.4]]), torch.tensor([[0.5, 0.5]]))
    tensor([[0.6000, 0.1333, 0.1333, 0.1333]])
    """
    olds, total = old.shape[1], old.shape[1] + new.shape[1]
    peak, place = old.max(1, keepdim=True)
    kept = (old * ((olds - 1) / (total - 1))).scatter(1, place, peak)
    shared = new * (1 - peak) * ((total - olds) / (total - 1))
    # With a single old class, 1 − peak is 0 and the sum stays 1.
    return torch.cat([kept, shared], 1)


def feature_distance(teacher: Tensor, student: Tensor) -> Tensor:
    """Return the mean of 1 − cosine between the features of two networks (LUCIR).

    Examples
    --------
    >>> float(feature_distance(torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 2.0]])))
    1.0
    """
    return (1 - functional.cosine_similarity(teacher, student, dim=1)).mean()


def margin_ranking(
    cosines: Tensor, labels: Tensor, old: int, hardest: int = 2, margin: float = 0.5
) -> Tensor:
    """Penalise samples of old classes that are closer than `margin` to new classes (LUCIR).

    Return the mean, over samples of the first `old` classes and the `hardest` new classes with the
    highest cosines, of max(0, margin − own cosine + that cosine); 0 without such samples.

    Examples
    --------
    >>> cosines = torch.tensor([[0.9, 0.1, 0.6, 0.2]])
    >>> round(float(margin_ranking(cosines, torch.tensor([0]), old=2)), 4)
    0.1
    """
    mine = labels < old
    if not mine.any():
        return cosines.sum() * 0.0
    own = cosines[mine].gather(1, labels[mine, None])
    count = min(hardest, cosines.shape[1] - old)
    nearest = cosines[mine, old:].topk(count, dim=1).values
    return functional.relu(margin - own + nearest).mean()


def topology_loss(before: Tensor, now: Tensor) -> Tensor:
    """Return minus the Pearson correlation between the old and new cosines of all pairs (TPL).

    Parameters
    ----------
    before, now : Tensor, shape (n, F)
        Features of the same images; only their directions matter.

    Examples
    --------
    >>> x = torch.tensor([[1.0, 0.0], [1.0, 1.0], [0.0, 1.0]])
    >>> round(float(topology_loss(x, 2 * x)), 4)
    -1.0
    """
    i, j = torch.triu_indices(len(now), len(now), offset=1, device=now.device)
    edges = []
    for features in (before, now):
        unit = functional.normalize(features, dim=1)
        weights = (unit[i] * unit[j]).sum(1)
        edges.append(weights - weights.mean())
    return -functional.cosine_similarity(edges[0], edges[1], dim=0)
