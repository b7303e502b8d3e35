"""Second moments of a layer's inputs, accumulated over batches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from gradproj._arrays import Array, bits, check_array, computing, device, has_float64, namespace
from gradproj._errors import NotFiniteError
from gradproj._preserve.matrices import (
    at_least_float32,
    check_matrix,
    check_place,
    narrow,
    transposed,
    wide,
)

# Rows per product. Products are formed in the dtype of the inputs and added up in float64, so that
# the error of a float32 sum does not grow with the number of rows.
_ROWS = 2048


class InputMoments:
    r"""Accumulate the second moments of a layer's inputs over the batches of a task.

    .. math:: S = \frac1n \sum_{i=1}^n a_i a_i^\top

    S is all that :func:`preserve` and :func:`input_basis` need to know of a task: with it,
    :math:`\operatorname{tr}(w S w^\top)` is the mean of :math:`\|w a_i\|^2`.

    Inputs of 32 bits are multiplied in float32 and added up in float64. Inputs of 16 bits are
    converted to float32 first, because their products would not be positive semidefinite.

    Parameters
    ----------
    diagonal : bool
        Keep the diagonal of S alone, as for embeddings.

    Examples
    --------
    >>> import numpy as np
    >>> import gradproj as gp
    >>> moments = gp.InputMoments()
    >>> moments.update(np.asarray([[1.0, 2.0], [1.0, 0.0]]))
    >>> moments.update(np.asarray([[1.0, 1.0]]))
    >>> moments.count
    3
    >>> moments.total
    array([[3., 3.],
           [3., 5.]])
    >>> moments.matrix()
    array([[1.        , 1.        ],
           [1.        , 1.66666667]])

    Moments of several batches or processes add up. So do the matrices of several tasks, scaled so
    that a strength has the same meaning for each:

    >>> (moments + moments).count
    6
    >>> S = moments.matrix(scaled=True)
    >>> float(S.trace() / 2)
    1.0
    """

    __slots__ = ("_count", "_diagonal", "_like", "_total")

    def __init__(self, *, diagonal: bool = False) -> None:
        self._diagonal = diagonal
        self._count = 0
        self._total: Array | None = None
        # An empty array: the library, device and dtype of the inputs.
        self._like: Array | None = None

    @classmethod
    def from_total(cls, total: Array, count: int) -> InputMoments:
        """Make moments from a sum that was computed elsewhere.

        Parameters
        ----------
        total : array (..., in, in) or (in,)
            The sum of a aᵀ, or the diagonal of it: the counts of the tokens for an embedding.
            Integers are converted.
        count : int
            The number of inputs.

        Returns
        -------
        InputMoments

        Examples
        --------
        >>> import numpy as np
        >>> import gradproj as gp
        >>> gp.InputMoments.from_total(np.asarray([3, 0, 1]), 4).matrix()
        array([0.75, 0.  , 0.25])
        """
        with computing(total, native=True):
            if hasattr(total, "dtype") and _is_integer(total):
                xp = namespace(total)
                total = xp.astype(total, xp.float64 if has_float64(xp, total) else xp.float32)
            check_array("total", total)
            made = cls(diagonal=total.ndim == 1)
            made._begin(total)
            made._add("total", total, count)
        return made

    def update(self, a: Array) -> None:
        """Add a batch of inputs.

        Parameters
        ----------
        a : array (..., rows, in)
            One input per row, with a 1 appended for the bias if the layer has one. Leading axes
            are independent problems and stay: the groups of a convolution, for example.

        Examples
        --------
        >>> import numpy as np
        >>> import gradproj as gp
        >>> moments = gp.InputMoments(diagonal=True)
        >>> moments.update(np.asarray([[1.0, 2.0], [1.0, 0.0]]))
        >>> moments.matrix()
        array([1., 2.])
        """
        with computing(a, native=True):
            xp = check_matrix("a", a, "inputs (..., rows, in), one per row")
            if self._diagonal and a.ndim > 2:
                raise ValueError(f"a has shape {tuple(a.shape)}: diagonal moments take (rows, in)")
            if self._like is None:
                self._begin(a)
            half = bits(xp, a.dtype) == 16
            rows = a.shape[-2]
            for start in range(0, max(rows, 1), _ROWS):
                block = a[..., start : min(start + _ROWS, rows), :]
                if half:
                    block = xp.astype(block, xp.float32)
                if self._diagonal:
                    part = xp.sum(block * block, axis=0)
                else:
                    part = transposed(block) @ block
                self._add("a", part, block.shape[-2])

    def _begin(self, a: Array) -> None:
        xp = namespace(a)
        dtype = at_least_float32(xp, a.dtype)
        self._like = xp.zeros(0, dtype=dtype, device=device(a))

    def _add(self, name: str, part: Array, count: int) -> None:
        """Add a sum over so many inputs."""
        check_place(name, part, "the first batch", self._like)
        if part.ndim > 1 and part.shape[-1] != part.shape[-2]:
            raise ValueError(f"{name} has shape {tuple(part.shape)}: expected (..., in, in)")
        xp = namespace(part)
        # NaN and infinity in an input are on the diagonal of its product too.
        squares = part if self._diagonal else xp.linalg.diagonal(part)
        if not bool(xp.all(xp.isfinite(squares))):
            raise NotFiniteError(
                f"{name} contains NaN or infinity, or its squares overflow: skip this batch, or "
                "scale the inputs down"
            )
        added = wide(xp, part)
        if self._total is None:
            # A copy: the caller may change its array, and it may be read-only.
            self._total = namespace(added).asarray(added, copy=True)
        elif self._total.shape != added.shape:
            raise ValueError(
                f"{name} gives moments of shape {tuple(added.shape)} and earlier batches gave "
                f"{tuple(self._total.shape)}: use one InputMoments per layer"
            )
        else:
            self._total = self._total + added
        self._count += int(count)

    @property
    def count(self) -> int:
        """The number of inputs, per leading axis."""
        return self._count

    @property
    def diagonal(self) -> bool:
        """Whether only the diagonal of S is kept."""
        return self._diagonal

    @property
    def total(self) -> Array:
        """The sum of a aᵀ in float64, or in float32 on devices without float64."""
        total, like = self._observed()
        xp = namespace(like)
        with computing(like, native=True):
            return narrow(total, like, xp.float64 if has_float64(xp, like) else xp.float32)

    def matrix(self, *, scaled: bool = False) -> Array:
        """Return S, the mean of a aᵀ over all inputs.

        Parameters
        ----------
        scaled : bool
            Divide S by its mean eigenvalue. The strength of :func:`preserve` then has the same
            meaning for layers and tasks whose inputs differ in size. A zero S stays zero.

        Returns
        -------
        S : array (..., in, in), or (in,) for diagonal moments
            In the library, device and dtype of the inputs; float32 for inputs of 16 bits.

        Examples
        --------
        >>> import numpy as np
        >>> import gradproj as gp
        >>> moments = gp.InputMoments()
        >>> moments.update(np.asarray([[3.0, 0.0], [0.0, 1.0]]))
        >>> moments.matrix(scaled=True)
        array([[1.8, 0. ],
               [0. , 0.2]])
        """
        total, like = self._observed()
        if not self._count:
            raise ValueError("the moments have no inputs: call update with at least one row")
        with computing(like, native=True):
            xp = namespace(total)
            S = total / self._count
            if scaled:
                trace = xp.sum(S if self._diagonal else xp.linalg.diagonal(S), axis=-1)
                mean = trace / max(S.shape[-1], 1)
                mean = xp.where(mean > 0, mean, xp.ones_like(mean))
                S = S / (mean if self._diagonal else mean[..., None, None])
            return narrow(S, like, like.dtype)

    def _observed(self) -> tuple[Array, Array]:
        if self._total is None:
            raise ValueError("the moments have no inputs: call update first")
        return self._total, self._like

    def __add__(self, other: InputMoments) -> InputMoments:
        if not isinstance(other, InputMoments):
            return NotImplemented
        if self._diagonal != other._diagonal:
            raise ValueError("diagonal moments cannot be added to full ones: use one kind")
        made = InputMoments(diagonal=self._diagonal)
        for each in (self, other):
            if each._total is None:
                continue
            if made._total is None:
                made._total, made._like, made._count = each._total, each._like, each._count
                continue
            with computing(each._like, native=True):
                check_place("the second summand", each._like, "the first", made._like)
                made._add("the second summand", each._total, each._count)
        return made

    def state_dict(self) -> dict[str, Any]:
        """Return the state as arrays and numbers, in the library of the inputs.

        Examples
        --------
        >>> import numpy as np
        >>> import gradproj as gp
        >>> moments = gp.InputMoments.from_total(np.asarray([3.0, 1.0]), 4)
        >>> again = gp.InputMoments(diagonal=True)
        >>> again.load_state_dict(moments.state_dict())
        >>> again.matrix()
        array([0.75, 0.25])
        """
        state: dict[str, Any] = {"count": self._count}
        if self._total is not None:
            state |= {"total": self.total, "like": self._like}
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what :meth:`state_dict` returned; what was there before is dropped."""
        self._count, self._total, self._like = 0, None, None
        if "total" not in state:
            return
        total = state["total"]
        if (total.ndim == 1) != self._diagonal:
            raise ValueError(
                f"the state has a total of shape {tuple(total.shape)} and these moments have "
                f"diagonal={self._diagonal}: make them with the same options"
            )
        with computing(total, native=True):
            self._like = state["like"]
            self._add("total", total, state["count"])

    def __repr__(self) -> str:
        shape = None if self._total is None else tuple(self._total.shape)
        return f"InputMoments(shape={shape}, count={self._count})"


def _is_integer(x: Array) -> bool:
    xp = namespace(x)
    return bool(xp.isdtype(x.dtype, "integral")) if xp is not np else x.dtype.kind in "iu"
