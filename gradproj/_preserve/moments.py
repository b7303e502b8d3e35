"""Second moments of a layer's inputs, accumulated over batches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gradproj._arrays import Array, check_array, computing
from gradproj._preserve.checks import (
    check_inputs,
    check_matrix,
    check_rank,
    check_same_layer,
    check_sum,
)
from gradproj._preserve.low_rank import narrow_moments
from gradproj._preserve.matrices import empty_rows, narrow, real, widest
from gradproj._preserve.sums import Collector


class InputMoments:
    r"""Accumulate the second moments of a layer's inputs over the batches of a task.

    .. math:: S = \frac1n \sum_{i=1}^n a_i a_i^\top

    S is all that :func:`preserve` and :func:`input_basis` need to know of a task: with it,
    :math:`\operatorname{tr}(w S w^\top)` is the mean of :math:`\|w a_i\|^2`.

    Inputs of 32 bits are multiplied in float32 and added up in float64. Inputs of 16 bits are
    converted to float32 first, because their products would not be positive semidefinite.

    Parameters
    ----------
    rank : int, optional
        Keep this number of leading directions and the trace, and never form a square matrix.
        :meth:`matrix` then returns :class:`LowRankMoments`, which are exact if the inputs span no
        more directions.
    diagonal : bool
        Keep the diagonal of S alone, as for embeddings.

    Examples
    --------
    >>> import numpy as np
    >>> import gradproj as gp
    >>> moments = gp.InputMoments()
    >>> moments.update(np.asarray([[1.0, 2.0], [1.0, 0.0]]))
    >>> moments.update(np.asarray([[1.0, 1.0]]))
    >>> moments.total
    array([[3., 3.],
           [3., 5.]])
    >>> moments.matrix()
    array([[1.        , 1.        ],
           [1.        , 1.66666667]])

    Moments of several batches or processes add up. So do the matrices of several tasks, scaled so
    that a strength has the same meaning for each:

    >>> S = moments.matrix(scaled=True)
    >>> float(S.trace() / 2)
    1.0
    """

    __slots__ = ("_count", "_diagonal", "_like", "_rank", "_rows")

    def __init__(self, *, rank: int | None = None, diagonal: bool = False) -> None:
        check_rank(rank)
        if rank is not None and diagonal:
            raise ValueError("diagonal moments have no directions to choose: pass rank or diagonal")
        self._rank, self._diagonal = rank, diagonal
        self._clear()

    def _clear(self) -> None:
        self._count = 0
        self._rows = Collector(self._rank, self._diagonal)
        # An array (..., 0, in): the library, device and dtype of the inputs, and their shape.
        self._like: Array | None = None

    @classmethod
    def from_total(cls, total: Array, count: int) -> InputMoments:
        """Make moments from a sum that was computed elsewhere.

        Parameters
        ----------
        total : array (..., in, in) or (in,)
            The sum of a aᵀ, or its diagonal: for an embedding, the integer counts of the tokens.
        count : int
            The number of inputs.

        Examples
        --------
        >>> import numpy as np
        >>> import gradproj as gp
        >>> gp.InputMoments.from_total(np.asarray([3, 0, 1]), 4).matrix()
        array([0.75, 0.  , 0.25])
        """
        with computing(total, native=True):
            total = real(total)
            check_array("total", total)
            made = cls(diagonal=total.ndim == 1)
            if total.ndim < 1 or (total.ndim > 1 and total.shape[-1] != total.shape[-2]):
                raise ValueError(
                    f"total has shape {tuple(total.shape)}: expected (..., in, in) or (in,)"
                )
            check_sum("total", total)
            made._like = empty_rows(total, total.shape[:-2])
            made._rows.sums().add(total)
            made._count = int(count)
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
            check_matrix("a", a, "inputs (..., rows, in), one per row")
            if self._diagonal and a.ndim > 2:
                raise ValueError(f"a has shape {tuple(a.shape)}: diagonal moments take (rows, in)")
            check_inputs("a", a)
            if self._like is None:
                self._like = empty_rows(a, a.shape[:-2])
            check_same_layer("a", a, "the first batch", self._like)
            self._rows.add(a)
            self._count += a.shape[-2]

    @property
    def count(self) -> int:
        """The number of inputs, per leading axis."""
        return self._count

    @property
    def diagonal(self) -> bool:
        """Whether only the diagonal of S is kept."""
        return self._diagonal

    @property
    def rank(self) -> int | None:
        """The number of directions that are kept, or None for all."""
        return self._rank

    @property
    def total(self) -> Any:
        """The sum of a aᵀ in float64, or in float32 on devices without float64.

        With a rank it is a :class:`LowRankMoments`.
        """
        with computing(like := self._observed(), native=True):
            return narrow_moments(self._rows.sums().mean(1), like, widest(like))

    def matrix(self, *, scaled: bool = False) -> Any:
        """Return S, the mean of a aᵀ over all inputs.

        Parameters
        ----------
        scaled : bool
            Divide S by its mean eigenvalue. The strength of :func:`preserve` then has the same
            meaning for layers and tasks whose inputs differ in size. A zero S stays zero.

        Returns
        -------
        S : array (..., in, in), (in,) for diagonal moments, or LowRankMoments with a rank
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
        like = self._observed()
        if not self._count:
            raise ValueError("the moments have no inputs: call update with at least one row")
        with computing(like, native=True):
            sums = self._rows.sums()
            return narrow_moments(
                sums.scaled() if scaled else sums.mean(self._count), like, like.dtype
            )

    def _observed(self) -> Array:
        if self._like is None:
            raise ValueError("the moments have no inputs: call update first")
        return self._like

    def __add__(self, other: InputMoments) -> InputMoments:
        if not isinstance(other, InputMoments):
            return NotImplemented
        if (self._diagonal, self._rank) != (other._diagonal, other._rank):
            raise ValueError(
                f"moments with rank={self._rank}, diagonal={self._diagonal} and with "
                f"rank={other._rank}, diagonal={other._diagonal} cannot be added: use one kind"
            )
        made = InputMoments(rank=self._rank, diagonal=self._diagonal)
        for each in (self, other):
            if each._like is None:
                continue
            made._like = each._like if made._like is None else made._like
            check_same_layer("the second summand", each._like, "the first", made._like)
            with computing(each._like, native=True):
                made._rows.sums().merge(each._rows.sums())
            made._count += each._count
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
        if self._like is None:
            return state
        like = self._like
        with computing(like, native=True):
            arrays = self._rows.sums().state().items()
            return state | {"like": like} | {n: narrow(x, like, widest(like)) for n, x in arrays}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a :meth:`state_dict`. The present state is dropped."""
        self._clear()
        if "like" in state:
            with computing(state["like"], native=True):
                self._rows.sums().load(state)
            self._like, self._count = state["like"], int(state["count"])

    def __repr__(self) -> str:
        shape = None if self._like is None else (*self._like.shape[:-2], self._like.shape[-1])
        return f"InputMoments(inputs={shape}, count={self._count})"
