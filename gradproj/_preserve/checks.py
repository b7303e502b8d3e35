"""Checks of the arguments of `preserve`, `input_basis` and their classes."""

from __future__ import annotations

import math
from typing import Any

from gradproj._arrays import Array, check_array, device, library, namespace
from gradproj._errors import NotFiniteError
from gradproj._preserve.matrices import identity, in_32_bits, pieces, transposed, wide


def check_matrix(name: str, x: Array, wanted: str) -> Any:
    """Return the namespace of an array with at least two axes."""
    check_array(name, x)
    if x.ndim < 2:
        raise ValueError(f"{name} has shape {tuple(x.shape)}: expected {wanted}")
    return namespace(x)


def check_finite(xp: Any, name: str, x: Array) -> None:
    """Raise if an array contains NaN or infinity."""
    if not bool(xp.all(xp.isfinite(x))):
        raise NotFiniteError(f"{name} contains NaN or infinity: skip this batch or step")


def check_place(name: str, x: Array, other: str, like: Array) -> None:
    """Raise if two arrays differ in library or device."""
    if namespace(x) is not namespace(like):
        raise TypeError(
            f"{other} is from {library(like)} and {name} is from {library(x)}: pass arrays of one "
            "library"
        )
    if device(x) != device(like):
        raise ValueError(
            f"{other} is on device {device(like)} and {name} is on {device(x)}: move both to one "
            "device"
        )


def check_orthonormal(xp: Any, name: str, B: Array) -> None:
    """Raise unless the rows of B are finite and orthonormal, up to the rounding of its dtype."""
    check_finite(xp, name, B)
    if not B.shape[-2]:
        return
    rows = wide(xp, B)
    product = rows @ transposed(rows)
    worst = float(namespace(rows).max(namespace(rows).abs(product - identity(product))))
    if worst > float(xp.finfo(B.dtype).eps) ** 0.5:
        raise ValueError(
            f"{name} has rows that are not orthonormal (B Bᵀ differs from the identity by "
            f"{worst:.1g}): pass gp.input_basis(S) or gp.gram_schmidt(B)"
        )


# Rows whose squares are formed at a time, which limits the extra memory.
_ROWS = 2048


def check_inputs(name: str, a: Array) -> None:
    """Raise if inputs (..., rows, in) or their squares are not finite."""
    xp = namespace(a)
    for piece in pieces(a, _ROWS):
        values = in_32_bits(piece)
        # The sum over the rows is the diagonal of the product.
        check_sum(name, xp.sum(values * values, axis=-2))


def check_sum(name: str, total: Array) -> None:
    """Raise if a sum of products is not finite."""
    xp = namespace(total)
    if not bool(xp.all(xp.isfinite(total))):
        raise NotFiniteError(
            f"{name} contains NaN or infinity, or its squares overflow: skip this batch, or scale "
            "the inputs down"
        )


def check_same_layer(name: str, a: Array, other: str, like: Array) -> None:
    """Raise if two arrays (..., rows, in) differ in more than the number of rows."""
    check_place(name, a, other, like)
    if a.shape[:-2] != like.shape[:-2] or a.shape[-1] != like.shape[-1]:
        expected = ", ".join(map(str, (*like.shape[:-2], "rows", like.shape[-1])))
        raise ValueError(
            f"{name} has inputs of shape {tuple(a.shape)} and {other} had ({expected}): use one "
            "InputMoments per layer"
        )


def within(value: object, low: float, high: float) -> bool:
    """Whether a value is a number from `low` to `high`; NaN is not."""
    try:
        return bool(low <= value <= high)  # type: ignore[operator]
    except (TypeError, ValueError):
        return False


def check_strength(strength: float) -> None:
    """Raise unless λ is a number >= 0 or infinity."""
    if not within(strength, 0, math.inf):
        raise ValueError(f"strength={strength!r} is invalid: expected a number >= 0 or math.inf")


def check_rank(rank: int | None) -> None:
    """Raise unless the rank is an integer >= 1 or None."""
    if rank is not None and (isinstance(rank, bool) or not isinstance(rank, int) or rank < 1):
        raise ValueError(f"rank={rank!r} is invalid: expected an integer >= 1 or None")
