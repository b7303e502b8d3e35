"""Moments of a given rank, as tensors: moved, saved, and restricted to some of the inputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

import gradproj as gp


def moved(S: Any, *args: Any) -> Any:
    """Return S on another device or in another dtype, as ``Tensor.to`` does."""
    if isinstance(S, gp.LowRankMoments):
        return gp.LowRankMoments(*(t.to(*args) for t in parts(S)))
    return S.to(*args)


def parts(S: Any) -> tuple[Tensor, ...]:
    """Return the tensors of S."""
    if isinstance(S, gp.LowRankMoments):
        return S.vectors, S.values, S.rest
    return (S,)


def whole(saved: Tensor | Sequence[Tensor]) -> Any:
    """Return S from a state: a tensor, or the list of its parts."""
    return saved if isinstance(saved, Tensor) else gp.LowRankMoments(*saved)


def restricted(S: Any, columns: slice) -> Any:
    """Return the moments of some of the inputs alone.

    For a given rank they are V'ᵀ diag(s − r) V' + r I with the columns V' of V, which are no longer
    orthonormal.
    """
    if not isinstance(S, gp.LowRankMoments):
        return S[..., columns, columns] if S.ndim > 1 else S
    rest = S.rest.double()[..., None]
    above = (S.values.double() - rest).clamp_min(0).sqrt()
    found = torch.linalg.svd(above[..., None] * S.vectors[..., columns].double(), False)
    values = found.S.square() + rest
    vectors = found.Vh.to(S.vectors.dtype)
    return gp.LowRankMoments(vectors, values.to(S.values.dtype), S.rest)
