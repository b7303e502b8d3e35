"""Soft and hard preservation of the answers to old inputs: the prepared operator and one step."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from gradproj._arrays import (
    Array,
    SameArray,
    bits,
    check_array,
    computing,
    namespace,
    narrowed,
)
from gradproj._preserve.basis import InputBasis, check_orthonormal
from gradproj._preserve.matrices import (
    at_least_float32,
    check_finite,
    check_matrix,
    check_place,
    eigenpairs,
    identity,
    narrow,
    resolution,
    transposed,
    wide,
)

# The inverse of I + λS is used up to this condition number, and as long as λ times the resolution
# of S stays below the second number: it is five to ten times faster than the eigenvalues.
_SAFE_CONDITION = 1e8
_HARMLESS = 1e-3


@dataclass(frozen=True)
class _Dense:
    matrix: Array

    def apply(self, g: Array) -> Array:
        return g @ self.matrix


@dataclass(frozen=True)
class _Diagonal:
    factors: Array

    def apply(self, g: Array) -> Array:
        return g * self.factors


@dataclass(frozen=True)
class _Factored:
    """w = r g + (g Vᵀ) diag(weights) V."""

    vectors: Array
    weights: Array
    rest: float

    def apply(self, g: Array) -> Array:
        inside = (g @ transposed(self.vectors)) * self.weights[..., None, :]
        return (g if self.rest == 1 else self.rest * g) + inside @ self.vectors


class Preservation:
    r"""Prepare the update that preserves the answers to old inputs, so that a step is one product.

    .. math:: w = \arg\min_w \tfrac12 \|w - g\|^2 + \tfrac\lambda2 \operatorname{tr}(w S w^\top)
       = g M, \qquad M = (I + \lambda S)^{-1}

    Make one with :meth:`soft` or :meth:`hard` when a task ends, and call :meth:`apply` in each step
    of the later tasks. M is computed in float64 and kept in the dtype of the gradients.

    Attributes
    ----------
    matrix : array (..., in, in) or None
        The matrix M, or None if the operator is kept in another form: as a vector for diagonal
        moments, or as a product of thin matrices.

    Examples
    --------
    >>> import numpy as np
    >>> import gradproj as gp
    >>> S = np.asarray([[1.0, 0.0], [0.0, 0.0]])
    >>> preservation = gp.Preservation.soft(S, strength=3.0)
    >>> preservation.apply(np.asarray([[4.0, 4.0]]))
    array([[1., 4.]])

    The gradient of a linear layer is a product Dᵀ A of output gradients and inputs. With fewer rows
    than outputs it is cheaper to change A:

    >>> A, D = np.asarray([[4.0, 4.0]]), np.asarray([[1.0, 0.0, 2.0]])
    >>> D.T @ preservation.apply(A)
    array([[1., 4.],
           [0., 0.],
           [2., 8.]])
    """

    __slots__ = ("_form", "_like", "_shape")

    def __init__(self, form: _Dense | _Diagonal | _Factored, like: Array) -> None:
        self._form = form
        self._like = like
        self._shape = tuple(like.shape[:-2]), like.shape[-1]

    @classmethod
    def soft(cls, S: Array, strength: float, *, dtype: Any = None) -> Preservation:
        r"""Prepare the soft form, which trades the new gradient against the old answers.

        .. math:: M = \arg\min_M \tfrac12 \|M - I\|^2 + \tfrac\lambda2 \operatorname{tr}(M S M^\top)
           = (I + \lambda S)^{-1}

        Parameters
        ----------
        S : array (..., in, in) or (in,)
            Second moments of the old inputs, for example ``moments.matrix()``; a vector is the
            diagonal of a diagonal matrix. Moments of several tasks are added up.
        strength : float
            λ >= 0. 0 is plain training; ``math.inf`` is the projection onto the null space of S.
            S counts as zero along eigenvectors whose eigenvalues its dtype cannot resolve.
        dtype : optional
            The dtype of the gradients. Default: that of S, and float32 if S has 16 bits.

        Returns
        -------
        Preservation

        Examples
        --------
        >>> import numpy as np
        >>> import gradproj as gp
        >>> gp.Preservation.soft(np.asarray([0.0, 1.0, 3.0]), 1.0).apply(np.ones((1, 3)))
        array([[1.  , 0.5 , 0.25]])
        """
        _check_strength(strength)
        with computing(S, native=True):
            check_array("S", S)
            xp = namespace(S)
            check_finite(xp, "S", S)
            dtype = at_least_float32(xp, S.dtype if dtype is None else dtype)
            if S.ndim == 1:
                factors = narrow(_diagonal(wide(xp, S), float(strength)), S, dtype)
                return cls(_Diagonal(factors), factors[None, :])
            if S.ndim < 1 or S.shape[-1] != S.shape[-2]:
                raise ValueError(
                    f"S has shape {tuple(S.shape)}: expected a square matrix (..., in, in), or a "
                    "vector (in,) for a diagonal one"
                )
            epsilon = float(xp.finfo(S.dtype).eps)
            M = narrow(_inverse(wide(xp, S), float(strength), epsilon), S, dtype)
            return cls(_Dense(M), M)

    @classmethod
    def hard(cls, basis: InputBasis | Array, *, dtype: Any = None) -> Preservation:
        r"""Prepare the hard form, which leaves the answers along a basis unchanged.

        .. math:: w = \arg\min_w \tfrac12 \|w - g\|^2 \ \text{ s.t. } \ w B^\top = 0
           \quad = \quad g - (g B^\top) B

        With importance weights v of :func:`input_basis` it is the scaled projection
        :math:`w = g - (g B^\top) \operatorname{diag}(v) B` (SGP).

        Parameters
        ----------
        basis : InputBasis or array (..., k, in)
            Orthonormal rows.
        dtype : optional
            The dtype of the gradients. Default: that of the basis, and float32 if it has 16 bits.

        Returns
        -------
        Preservation

        Examples
        --------
        >>> import numpy as np
        >>> import gradproj as gp
        >>> gp.Preservation.hard(np.asarray([[0.6, 0.8, 0.0]])).apply(np.ones((1, 3)))
        array([[ 0.16, -0.12,  1.  ]])
        """
        B = basis.vectors if isinstance(basis, InputBasis) else basis
        with computing(B, native=True):
            xp = check_matrix("basis", B, "a matrix (..., k, in) with orthonormal rows")
            check_orthonormal(xp, B)
            dtype = at_least_float32(xp, B.dtype if dtype is None else dtype)
            if isinstance(basis, InputBasis):
                importance = basis.importance
            else:
                importance = xp.ones_like(B[..., 0])
            k, n = B.shape[-2:]
            if 2 * k < n:
                vectors = xp.astype(B, dtype, copy=False)
                return cls(_Factored(vectors, -xp.astype(importance, dtype), 1.0), vectors)
            rows, weights = wide(xp, B), wide(xp, importance)
            removed = transposed(rows) @ (weights[..., None] * rows)
            M = narrow(identity(removed) - removed, B, dtype)
            return cls(_Dense(M), M)

    @property
    def matrix(self) -> Array | None:
        """The matrix M, or None if the operator is kept in another form."""
        return self._form.matrix if isinstance(self._form, _Dense) else None

    def apply(self, g: SameArray, *, out: SameArray | None = None) -> SameArray:
        """Return w = g M.

        NaN or infinity in `g` is not searched for, which would stop a GPU in each step. It spreads
        over its row of w. :func:`preserve` checks for it.

        Parameters
        ----------
        g : array (..., rows, in)
            Gradients of the layer's weight, or any other rows in the space of its inputs. The
            leading axes are those of S, or any if S has none.
        out : array (..., rows, in), optional
            Writable array that receives w; it may be `g` itself.

        Returns
        -------
        w : array (..., rows, in)
            `out`, or a new array in the library, dtype and device of `g`.

        Examples
        --------
        >>> import numpy as np
        >>> import gradproj as gp
        >>> g = np.ones((1, 2))
        >>> _ = gp.Preservation.soft(np.eye(2), 1.0).apply(g, out=g)
        >>> g
        array([[0.5, 0.5]])
        """
        with computing(g, native=True):
            new: Any = g
            xp = self._check("g", new)
            half = bits(xp, new.dtype) == 16
            w = self._form.apply(xp.astype(new, self._like.dtype) if half else new)
            if half:
                w = narrowed(xp, w, new.dtype)
            found: SameArray = w
            return found if out is None else _written(found, new, out)

    def _check(self, name: str, g: Array) -> Any:
        """Raise unless g belongs to the layer; return its namespace."""
        like, (batch, n) = self._like, self._shape
        xp = check_matrix(name, g, f"rows in the space of the inputs, (..., rows, {n})")
        check_place(name, g, "the prepared operator", like)
        if g.dtype != like.dtype and not (bits(xp, g.dtype) == 16 and like.dtype == xp.float32):
            raise TypeError(
                f"{name} has dtype {g.dtype} and the operator was prepared for {like.dtype}: pass "
                f"dtype={name}.dtype to Preservation.soft or Preservation.hard"
            )
        if g.shape[-1] != n or (batch and tuple(g.shape[:-2]) != batch):
            wanted = "".join(f"{size}, " for size in batch) if batch else "..., "
            raise ValueError(
                f"{name} has shape {tuple(g.shape)}: expected ({wanted}rows, {n}), as the inputs "
                "of the layer have it; append a column for the bias if they have one"
            )
        return xp

    def __repr__(self) -> str:
        kind = type(self._form).__name__.strip("_").lower()
        batch, n = self._shape
        return f"Preservation({kind}, shape={(*batch, n, n)}, dtype={self._like.dtype})"


def preserve(
    g: SameArray,
    S: Array | None = None,
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
    S : array (..., in, in) or (in,)
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
    check_array("S", S)
    check_place("S", S, "g", new)
    return Preservation.soft(S, strength, dtype=dtype).apply(g, out=out)


def _check_strength(strength: float) -> None:
    if not strength >= 0:  # also for NaN
        raise ValueError(f"strength={strength!r} is invalid: expected a number >= 0 or math.inf")


def _diagonal(s: Array, strength: float) -> Array:
    """Return the diagonal of (I + λS)⁻¹ for a diagonal S; its zeros are exact."""
    xp = namespace(s)
    if s.shape[0] and float(xp.min(s)) < 0:
        raise ValueError(f"S has the entry {float(xp.min(s)):.2g}: expected a diagonal >= 0")
    if strength == math.inf:
        return xp.astype(s <= 0, s.dtype)
    return 1 / (1 + strength * s)


def _inverse(S: Array, strength: float, epsilon: float) -> Array:
    """Return (I + λS)⁻¹ in float64, or the projector onto the null space of S for λ = ∞."""
    xp = namespace(S)
    if S.shape[-1] == 0 or 0 in S.shape:
        return S
    noise = resolution(S, epsilon)
    if strength * float(xp.max(noise)) <= min(_HARMLESS, _SAFE_CONDITION * epsilon):
        M = xp.linalg.inv(identity(S) + strength * ((S + transposed(S)) / 2))
        diagonal = xp.linalg.diagonal(M)
        if bool(xp.all((diagonal > 0) & (diagonal <= 1 + _HARMLESS))):
            return (M + transposed(M)) / 2
    values, vectors = eigenpairs(S, noise)
    if strength == math.inf:
        kept = xp.astype(values <= 0, values.dtype)
    else:
        kept = 1 / (1 + strength * values)
    return (vectors * kept[..., None, :]) @ transposed(vectors)


def _written(w: SameArray, g: Array, out: SameArray) -> SameArray:
    """Write an update to `out` and return it."""
    target: Any = out
    check_array("out", target)
    check_place("out", target, "g", g)
    if target.dtype != g.dtype or target.shape != g.shape:
        raise ValueError(
            f"out has shape {tuple(target.shape)} and dtype {target.dtype}: expected those of g, "
            f"{tuple(g.shape)} and {g.dtype}"
        )
    try:
        target[...] = w
    except (TypeError, np.exceptions.AxisError) as error:
        raise TypeError(f"out cannot be written to: {error}") from error
    return out
