"""The operator M of an update w = g M, for all columns of [W b] or for some of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor

import gradproj as gp
from gradproj.adapters.torch._preserver.low_rank import moved, restricted

# The columns of [W b] that change in a step: "weight" and "bias" if the other one is fixed.
Columns = Literal["all", "weight", "bias"]
Operator = Tensor | gp.Preservation
_SLICES = {"all": slice(None), "weight": slice(0, -1), "bias": slice(-1, None)}


def soft(S: Any, columns: Columns, like: Tensor, strength: float) -> Operator:
    """Return M = (I + λS)⁻¹ for rows with the dtype and device of `like`."""
    S = moved(S, like.device)
    if columns != "all":
        S = restricted(S, _SLICES[columns])
    return _plain(gp.Preservation.soft(S, strength, dtype=like.dtype))


def hard(
    bases: Sequence[gp.InputBasis], columns: Columns, like: Tensor, *, batched: bool
) -> Operator:
    """Return M = I − Bᵀ diag(v) B.

    Parameters
    ----------
    bases : sequence of InputBasis
        One basis per group or channel.
    columns : {"all", "weight", "bias"}
        The columns that change.
    like : Tensor
        Rows with the dtype and device of M.
    batched : bool
        Whether M has a leading axis for the groups or channels.
    """
    found = [_restricted(on_device(basis, like.device), columns) for basis in bases]
    prepared = [gp.Preservation.hard(basis, dtype=like.dtype) for basis in found]
    if not batched:
        return _plain(prepared[0])
    eye = torch.eye(found[0].vectors.shape[-1], dtype=like.dtype, device=like.device)
    return torch.stack([operator.apply(eye) for operator in prepared])


def product(g: Tensor, M: Operator) -> Tensor:
    """Return g M."""
    w: Tensor = g @ M if isinstance(M, Tensor) else M.apply(g)
    return w


def on_device(basis: gp.InputBasis, device: torch.device) -> gp.InputBasis:
    """Return a basis on another device."""
    return gp.InputBasis(basis.vectors.to(device), basis.importance.to(device))


def _plain(operator: gp.Preservation) -> Operator:
    """Return the matrix M if there is one, because a product with it skips the core's checks."""
    matrix: Tensor | None = operator.matrix
    return operator if matrix is None else matrix


def _restricted(basis: gp.InputBasis, columns: Columns) -> gp.InputBasis:
    """Return an orthonormal basis of the inputs of some columns."""
    if columns == "all":
        return basis
    vectors = basis.vectors[:, _SLICES[columns]].double()
    U, size, rows = torch.linalg.svd(vectors, full_matrices=False)
    kept = size > torch.finfo(basis.vectors.dtype).eps ** 0.5
    weights = (U.square() * basis.importance.double()[:, None]).sum(0)
    dtype = basis.vectors.dtype
    return gp.InputBasis(rows[kept].to(dtype), weights[kept].to(dtype))
