"""One step that preserves the answers to old inputs."""

from __future__ import annotations

from typing import Any

from gradproj._arrays import Array, SameArray, check_array, computing
from gradproj._preserve.basis import InputBasis
from gradproj._preserve.checks import check_finite, check_matrix, check_place
from gradproj._preserve.low_rank import LowRankMoments
from gradproj._preserve.matrices import at_least_float32
from gradproj._preserve.preservation import Preservation


def preserve(
    g: SameArray,
    S: Array | LowRankMoments | None = None,
    *,
    strength: float | None = None,
    basis: InputBasis | Array | None = None,
    out: SameArray | None = None,
) -> SameArray:
    r"""Change a layer's gradient so that its answers to old inputs stay nearly the same.

    .. math:: \min_w \tfrac12 \|w - g\|^2 + \tfrac\lambda2 \operatorname{tr}(w S w^\top)

    The solution is :math:`w = g (I + \lambda S)^{-1}`. S holds the second moments of the inputs a
    of old tasks, so that the penalty is the mean of :math:`\|w a\|^2`, the squared change of the
    layer's answers along w. No old sample is needed. w is a descent direction for the new loss.

    With a basis B of the old inputs instead, the answers along it stay exactly the same:

    .. math:: \min_w \tfrac12 \|w - g\|^2 \quad \text{s.t.} \quad w B^\top = 0

    For many steps with the same S or B, prepare a :class:`Preservation` once.

    Parameters
    ----------
    g : array (..., out, in)
        Gradient of the layer's weight, with a last column for the bias if the inputs have one.
    S : array (..., in, in) or (in,), or LowRankMoments
        Second moments of the old inputs, for example ``moments.matrix()``.
    strength : float
        λ >= 0; required with S. ``math.inf`` is the projection onto the null space of S.
    basis : InputBasis or array (k, in)
        Orthonormal rows, for example from :func:`input_basis`, instead of S.
    out : array (..., out, in), optional
        Writable array that receives the update; it may be `g` itself.

    Returns
    -------
    w : array (..., out, in)
        `out`, or a new array in the library, dtype and device of `g`.

    Examples
    --------
    >>> import numpy as np
    >>> import gradproj as gp
    >>> g = np.asarray([[4.0, 4.0]])
    >>> gp.preserve(g, np.asarray([[1.0, 0.0], [0.0, 0.0]]), strength=3.0)
    array([[1., 4.]])
    >>> gp.preserve(g, basis=np.asarray([[1.0, 0.0]]))
    array([[0., 4.]])
    """
    if (S is None) == (basis is None):
        raise TypeError("pass either S with a strength, or a basis")
    with computing(g, native=True):
        new: Any = g
        xp = check_matrix("g", new, "a matrix (..., out, in)")
        check_finite(xp, "g", new)
        dtype = at_least_float32(xp, new.dtype)
    if basis is not None:
        if strength is not None:
            raise TypeError("strength has no meaning with a basis: pass importance weights with it")
        check_place("basis", basis.vectors if isinstance(basis, InputBasis) else basis, "g", new)
        return Preservation.hard(basis, dtype=dtype).apply(g, out=out)
    if strength is None:
        raise TypeError("strength is missing: pass S with strength=λ, for example strength=1.0")
    moments = S.vectors if isinstance(S, LowRankMoments) else S
    check_array("S", moments)
    check_place("S", moments, "g", new)
    return Preservation.soft(S, strength, dtype=dtype).apply(g, out=out)
