"""Methods that need only one combination of the old gradients, and when it is only rounding."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from gradproj._arrays import HostArray
from gradproj._method import Method, Solution

# A sum shorter than this fraction of its terms has lost digits to cancellation: 2 of the 7 that
# float32 has. `project` then computes it again in float64.
_DIGITS_LOST = 0.03
# A sum of at most this many rounding errors of its terms counts as zero.
_ROUNDING_ERRORS = 4.0


@dataclass(frozen=True, eq=False)  # arrays have no single answer to ==
class Reduction:
    r"""The one combination of the old gradients that a method needs in this step.

    .. math:: m = \sum_i a_i g_i

    A-GEM and the shared constraint alone need the mean, S-GEM the gradient that it has drawn. The
    problem is then solved with the single old gradient m, without the T×T products.

    Attributes
    ----------
    weights : numpy.ndarray (T,)
        The weights :math:`a_i`.
    method : Method
        Solves the problem with the single old gradient.

    Examples
    --------
    >>> import gradproj as gp
    >>> gp.AGEM().reduce(4).weights
    array([0.25, 0.25, 0.25, 0.25])
    """

    weights: HostArray
    method: Method

    def __post_init__(self) -> None:
        weights = np.asarray(self.weights, dtype=np.float64)
        if weights.ndim != 1 or not np.isfinite(weights).all() or not weights.any():
            raise ValueError(
                f"weights={self.weights!r} is invalid: expected one finite number per old task, "
                "not all of them 0"
            )
        object.__setattr__(self, "weights", weights)

    @property
    def tasks(self) -> list[int]:
        """The old tasks in the sum."""
        return [int(task) for task in np.flatnonzero(self.weights)]

    def expand(self, solution: Solution) -> Solution:
        """Return the solution in terms of all T old gradients."""
        return replace(solution, coefficients=solution.coefficients * self.weights)

    def doubtful(self, square: npt.ArrayLike, scale: npt.ArrayLike) -> npt.NDArray[np.bool_]:
        r"""Return where cancellation has cost the sum digits.

        Parameters
        ----------
        square : array_like (L,)
            Squared length of the sum.
        scale : array_like (L,)
            The lengths of its terms added up, :math:`\sum_i |a_i| \|g_i\|`, or an estimate.
        """
        square, scale = np.asarray(square), np.asarray(scale)
        # A sum is never longer than its terms. If it is, then the estimate is wrong, for example
        # because it has seen only columns that are zero.
        return ~((square > (_DIGITS_LOST * scale) ** 2) & (square < 4 * scale**2))

    def cancels(
        self, square: npt.ArrayLike, scale: npt.ArrayLike, epsilon: float
    ) -> npt.NDArray[np.bool_]:
        """Return where the sum is zero up to the rounding of its terms: no direction is left.

        Parameters
        ----------
        square, scale
            As in :meth:`doubtful`.
        epsilon : float
            Rounding unit of the gradients' dtype, such as ``numpy.finfo(dtype).eps``.
        """
        least = (_ROUNDING_ERRORS * epsilon * np.asarray(scale)) ** 2
        return np.isfinite(square) & (np.asarray(square) <= least)
