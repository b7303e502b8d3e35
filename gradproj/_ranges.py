"""Gradients whose squares are too large or too small for their dtype."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from gradproj._arrays import Array, HostArray

# Squared norms outside these ranges are too close to overflow or to the subnormal numbers.
_SAFE_32 = (1e-24, 1e36)
_SAFE_64 = (1e-280, 1e280)
# Numbers below 2 to this power, and above 2 to its negative, have squares that fit into float64.
_EXPONENT = 400


def unsafe_layers(C: HostArray, square: HostArray, narrow: bool) -> npt.NDArray[np.bool_]:
    """Return which layers have a squared norm outside of the safe range of their dtype, or NaN."""
    sizes = np.concatenate([np.diagonal(C, axis1=1, axis2=2), square[:, None]], axis=1)
    low, high = _SAFE_32 if narrow else _SAFE_64
    if sizes.min(initial=1.0) > low and sizes.max(initial=1.0) < high:  # false for NaN
        return np.zeros(len(C), bool)
    return np.asarray(~((sizes > low) & (sizes < high)).all(1))


def only_zeros(xp: Any, g: Array, G: Array, C: HostArray, square: float) -> bool:
    """Whether only gradients that are exactly zero, as for unused heads, left the safe range."""
    low, high = _SAFE_32
    sizes = np.append(np.diagonal(C), square)
    if not ((sizes == 0) | ((sizes > low) & (sizes < high))).all():
        return False
    rows = [G[int(row), :] if row < len(C) else g for row in np.flatnonzero(sizes == 0)]
    return not any(bool(xp.any(row != 0)) for row in rows)


def fitting_factors(
    xp: Any, g: Sequence[Array], G: Sequence[Array], unsafe: npt.NDArray[np.bool_]
) -> list[float] | None:
    """Return powers of two by which to multiply each layer whose squares do not fit into float64.

    A common factor of g and G leaves the coefficients of every method without a ridge as they are.
    A ridge is not scaled with them, so it is too small for gradients shorter than 1e-140. None if
    all layers fit, as they nearly always do.
    """
    if g[0].dtype != xp.float64:  # squares of smaller dtypes always fit
        return None
    factors = [1.0] * len(g)
    for layer in np.flatnonzero(unsafe).tolist():
        sizes = [_largest(xp, x) for x in (g[layer], G[layer])]
        if all(np.isfinite(sizes)) and any(sizes):
            exponents = [math.frexp(size)[1] for size in sizes if size]
            if any(abs(exponent) > _EXPONENT for exponent in exponents):
                factors[layer] = math.ldexp(1.0, -round(sum(exponents) / len(exponents)))
    return factors if any(factor != 1 for factor in factors) else None


def _largest(xp: Any, x: Array) -> float:
    """Return the largest absolute value, 0 for an empty array."""
    return float(xp.max(xp.abs(x))) if math.prod(x.shape) else 0.0
