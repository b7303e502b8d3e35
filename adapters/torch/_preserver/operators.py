"""The operator M of an update w = g M, for all columns of [W b] or for some of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor

import gradproj as gp
from gradproj.adapters.torch._preserver.low_rank import moved, restricted
from gradproj.adapters.torch._preserver.packed import Packed, packs

# The columns of [W b] that change in a step: "weight" and "bias" if the other one is fixed.
Columns = Literal["all", "weight", "bias"]
_SLICES = {"all": slice(None), "weight": slice(0, -1), "bias": slice(-1, None)}


class Factored:
    """The operator w = rest · g + (g Vᵀ) U, with U = diag(weights) V.

    Parameters
    ----------
    vectors : Tensor (k, in)
        The rows V.
    weights : Tensor (k,)
        One weight per row.
    rest : float
        The factor of what is outside of V.
    """

    def __init__(self, vectors: Tensor, weights: Tensor, rest: float) -> None:
        self.inner, self.outer = _packed(vectors.T), _packed(weights[:, None] * vectors)
        self.rest = rest

    def apply(self, g: Tensor) -> Tensor:
        """Return w."""
        return product(product(g, self.inner), self.outer).add_(g, alpha=self.rest)


Operator = Tensor | Packed | Factored | gp.Preservation


def soft(S: Any, columns: Columns, like: Tensor, strength: float) -> Operator:
    """Return M = (I + λS)⁻¹ for rows with the dtype and device of `like`."""
    S = moved(S, like.device)
    if columns != "all":
        S = restricted(S, _SLICES[columns])
    return _fast(gp.Preservation.soft(S, strength, dtype=like.dtype))


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
        return _fast(prepared[0])
    eye = torch.eye(found[0].vectors.shape[-1], dtype=like.dtype, device=like.device)
    return torch.stack([operator.apply(eye) for operator in prepared])


def product(g: Tensor, M: Operator) -> Tensor:
    """Return g M."""
    w: Tensor = g @ M if isinstance(M, Tensor) else M.apply(g)
    return w


def on_device(basis: gp.InputBasis, device: torch.device) -> gp.InputBasis:
    """Return a basis on another device."""
    return gp.InputBasis(basis.vectors.to(device), basis.importance.to(device))


def tensors(operator: Operator) -> tuple[Tensor, ...]:
    """Return the tensors that an operator keeps, without views of the vectors of S or a basis."""
    if isinstance(operator, Tensor):
        return (operator,)
    if isinstance(operator, Packed):
        return (operator.memory,)
    if isinstance(operator, Factored):
        inner = operator.inner
        return (*(tensors(inner) if isinstance(inner, Packed) else ()), *tensors(operator.outer))
    return ()


def _fast(prepared: gp.Preservation) -> Operator:
    """Return the form whose product is fastest, without the core's checks of each product."""
    if prepared.matrix is not None:
        return _packed(prepared.matrix)
    if prepared.factors is None or prepared.factors[0].ndim > 2:
        return prepared
    vectors, weights, rest = prepared.factors
    return Factored(vectors, weights, 1.0 if rest is None else float(rest))


def _packed(matrix: Tensor) -> Tensor | Packed:
    return Packed(matrix) if packs(matrix) else matrix


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
