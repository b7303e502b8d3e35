"""The operator that preserves the answers to old inputs, prepared once for many steps."""

from __future__ import annotations

from typing import Any

import numpy as np

from gradproj._arrays import (
    Array,
    SameArray,
    bits,
    check_array,
    computing,
    is_plain,
    namespace,
    narrowed,
)
from gradproj._preserve import forms
from gradproj._preserve.basis import InputBasis
from gradproj._preserve.checks import (
    check_finite,
    check_matrix,
    check_orthonormal,
    check_place,
    check_rank,
    check_strength,
)
from gradproj._preserve.low_rank import LowRankMoments, check_low_rank
from gradproj._preserve.matrices import at_least_float32


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
    factors : tuple of arrays or None
        V (..., k, in), weights v (..., k) and rest r (...), or None for r = 1, if the operator is
        kept as :math:`w = r g + (g V^\top) \operatorname{diag}(v)\, V`; None in other forms.

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

    def __init__(self, form: forms.Form) -> None:
        self._form, self._like = form, form.like
        self._shape = tuple(self._like.shape[:-2]), self._like.shape[-1]

    @classmethod
    def soft(
        cls,
        S: Array | LowRankMoments,
        strength: float,
        *,
        rank: int | None = None,
        dtype: Any = None,
    ) -> Preservation:
        r"""Prepare the soft form, which trades the new gradient against the old answers.

        .. math:: M = \arg\min_M \tfrac12 \|M - I\|^2 + \tfrac\lambda2 \operatorname{tr}(M S M^\top)
           = (I + \lambda S)^{-1}

        Parameters
        ----------
        S : array (..., in, in) or (in,), or LowRankMoments
            Second moments of the old inputs, for example ``moments.matrix()``; a vector is the
            diagonal of a diagonal matrix. Moments of several tasks are added up.
        strength : float
            λ >= 0. 0 is plain training; ``math.inf`` is the projection onto the null space of S.
            S counts as zero along eigenvectors whose eigenvalues its dtype cannot resolve.
            Eigenvalues that are more negative than that are an error.
        rank : int, optional
            Keep this number of leading directions of a matrix S, and one number for the others.
            A step then takes 2 · rank / in of the products, and the result is approximate.
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
        check_strength(strength)
        check_rank(rank)
        like = S.vectors if isinstance(S, LowRankMoments) else S
        with computing(like, native=True):
            check_array("S", like)
            xp, strength = namespace(like), float(strength)
            check_finite(xp, "S", like)
            dtype = at_least_float32(xp, like.dtype if dtype is None else dtype)
            epsilon = float(xp.finfo(like.dtype).eps)
            if isinstance(S, LowRankMoments):
                check_low_rank("S", S)
                check_orthonormal(xp, "S.vectors", like)
            elif S.ndim > 1 and S.shape[-1] == S.shape[-2]:
                if rank is None:
                    return cls(forms.soft(S, strength, dtype))
                S, rank = forms.truncated(S, rank, dtype), None
            elif S.ndim != 1:
                raise ValueError(
                    f"S has shape {tuple(S.shape)}: expected a square matrix (..., in, in), or a "
                    "vector (in,) for a diagonal one"
                )
            if rank is not None:
                raise ValueError("rank chooses directions of a matrix S: leave it out for this S")
            if isinstance(S, LowRankMoments):
                return cls(forms.soft_low_rank(S, strength, dtype, epsilon))
            return cls(forms.soft_diagonal(S, strength, dtype))

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
            check_orthonormal(xp, "basis", B)
            dtype = at_least_float32(xp, B.dtype if dtype is None else dtype)
            if not isinstance(basis, InputBasis):
                basis = InputBasis(B, xp.ones_like(B[..., 0]))
            return cls(forms.hard(basis, dtype))

    @property
    def matrix(self) -> Array | None:
        """The matrix M, or None if the operator is kept in another form."""
        return self._form.matrix if isinstance(self._form, forms.Dense) else None

    @property
    def factors(self) -> tuple[Array, Array, Array | None] | None:
        """V, the weights and the rest of a product of thin matrices, or None in other forms."""
        form = self._form
        if not isinstance(form, forms.Factored):
            return None
        return form.vectors, form.weights, form.rest

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
        new: Any = g
        if is_plain(new, self._like) and self._fits(new):
            with np.errstate(over="ignore", invalid="ignore"):
                plain: SameArray = self._form.apply(new)
            return plain if out is None else forms.written(plain, new, out)
        with computing(g, native=True):
            xp = self._check("g", new)
            half = bits(xp, new.dtype) == 16
            w = self._form.apply(xp.astype(new, self._like.dtype) if half else new)
            if half:
                w = narrowed(xp, w, new.dtype)
            found: SameArray = w
            return found if out is None else forms.written(found, new, out)

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
        if not self._fits(g):
            wanted = "".join(f"{size}, " for size in batch) if batch else "..., "
            raise ValueError(
                f"{name} has shape {tuple(g.shape)}: expected ({wanted}rows, {n}), as the inputs "
                "of the layer have it; append a column for the bias if they have one"
            )
        return xp

    def _fits(self, g: Array) -> bool:
        (batch, n), shape = self._shape, g.shape
        return len(shape) > 1 and shape[-1] == n and (not batch or tuple(shape[:-2]) == batch)

    def __repr__(self) -> str:
        kind = type(self._form).__name__.lower()
        batch, n = self._shape
        return f"Preservation({kind}, shape={(*batch, n, n)}, dtype={self._like.dtype})"
