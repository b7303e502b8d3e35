"""What a method is: one function from inner products to coefficients."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gradproj._arrays import HostArray
from gradproj._errors import NotFiniteError

# Relative accuracy below which a squared length counts as zero. Inner products of float64 gradients
# are good to about 1e-16 of the squared norms, blocked float32 ones to about 5e-8.
TOLERANCE_64 = 1e-13
TOLERANCE_32 = 1e-6


@dataclass(frozen=True, eq=False)  # arrays have no one answer to ==
class Solution:
    r"""What a method found, for one problem or for a batch of L layers.

    All but the coefficients is for those who look at it, and 0 unless given.

    Attributes
    ----------
    coefficients : numpy.ndarray (T,) or (L, T)
        The :math:`c` of :math:`w = g + G^\top c`.
    rank : numpy.ndarray of int, () or (L,)
        Decomposed: directions of the task-specific part that were projected out. GEM: constraints
        that are active.
    multiplier : numpy.ndarray () or (L,)
        The dual variable of the inequality constraint; the largest one where there are several.
    corrected : numpy.ndarray of bool, () or (L,)
        Whether an inequality constraint was violated by what came in, and mended.

    Examples
    --------
    >>> import numpy as np
    >>> import gradproj as gp
    >>> gp.AGEM().solve(np.asarray([[4.0]]), np.asarray([-2.0]))
    Solution(coefficients=array([0.5]), rank=array(0), multiplier=array(0.5), corrected=array(True))
    """

    coefficients: HostArray
    rank: npt.NDArray[np.int64] = None  # type: ignore[assignment]  # zeros, below
    multiplier: HostArray = None  # type: ignore[assignment]
    corrected: npt.NDArray[np.bool_] = None  # type: ignore[assignment]

    def __post_init__(self) -> None:
        # One form, whatever a method of one's own returns: not every library takes the others.
        coefficients = np.asarray(self.coefficients, dtype=np.float64, order="C")
        object.__setattr__(self, "coefficients", coefficients)
        for name, dtype in (("rank", np.int64), ("multiplier", np.float64), ("corrected", bool)):
            value = getattr(self, name)
            given = np.asarray(0 if value is None else value, dtype=dtype)
            if given.shape != coefficients.shape[:-1]:
                given = np.broadcast_to(given, coefficients.shape[:-1]).copy()
            object.__setattr__(self, name, given)

    def __getitem__(self, layer: int) -> Solution:
        """Return one layer's part of a batch."""
        return Solution(
            self.coefficients[layer],
            np.asarray(self.rank[layer]),
            np.asarray(self.multiplier[layer]),
            np.asarray(self.corrected[layer]),
        )


class Method(ABC):
    r"""A way to change the new gradient, seen through inner products only.

    .. math:: w = g + G^\top c, \qquad c = \mathrm{solve}(G G^\top, G g)

    Subclass it and write :meth:`solve_layers`, and a method of your own works in :func:`project`,
    :func:`project_layers` and the adapters.

    Examples
    --------
    >>> import numpy as np
    >>> import gradproj as gp
    >>> class Replay(gp.Method):
    ...     def solve_layers(self, C, h, tolerance):
    ...         return gp.Solution(np.ones_like(h))
    >>> gp.project(np.asarray([1.0, 0.0]), np.asarray([[0.0, 3.0]]), Replay())
    array([1., 3.])
    """

    def solve(self, C: HostArray, h: HostArray, *, tolerance: float = TOLERANCE_64) -> Solution:
        """Solve one T-sized problem, or a batch of them with a leading layer axis.

        Parameters
        ----------
        C : numpy.ndarray (T, T) or (L, T, T)
            Inner products of the old gradients.
        h : numpy.ndarray (T,) or (L, T)
            Inner products of the old gradients with the new one.
        tolerance : float
            Relative accuracy of `C`: squared lengths below it, relative to the longest old
            gradient's, count as zero. The default is for products that were formed in float64.

        Returns
        -------
        Solution
            With a leading layer axis if `C` has one.
        """
        C, h = np.asarray(C, dtype=np.float64), np.asarray(h, dtype=np.float64)
        if h.ndim not in (1, 2) or C.shape != (*h.shape, h.shape[-1]):
            raise ValueError(
                f"C has shape {C.shape} and h {h.shape}: they should be (T, T) and (T,), or "
                "(L, T, T) and (L, T)"
            )
        if not 0 <= tolerance < 1:
            raise ValueError(f"tolerance={tolerance!r}: it should be a number from 0 to below 1")
        if not (np.isfinite(C).all() and np.isfinite(h).all()):
            raise NotFiniteError("C or h holds NaN or infinity: check the gradients they come from")
        if h.ndim == 1:
            return solve_checked(self, C[None], h[None], tolerance)[0]
        return solve_checked(self, C, h, tolerance)

    def coefficients(
        self, C: HostArray, h: HostArray, *, tolerance: float = TOLERANCE_64
    ) -> HostArray:
        """Return the coefficients of :meth:`solve` alone."""
        return self.solve(C, h, tolerance=tolerance).coefficients

    @abstractmethod
    def solve_layers(self, C: HostArray, h: HostArray, tolerance: float) -> Solution:
        """Solve a batch of layers: what a method is.

        A step may need two calls: layers whose inner products were formed in float32 have another
        tolerance than the rest.

        Parameters
        ----------
        C : numpy.ndarray (L, T, T)
            Inner products of the old gradients, finite; T may be 0.
        h : numpy.ndarray (L, T)
            Inner products of the old gradients with the new one.
        tolerance : float
            Relative accuracy of `C`, as in :meth:`solve`.

        Returns
        -------
        Solution
            With coefficients (L, T).
        """

    def _reduce(self, T: int) -> tuple[HostArray, Method] | None:
        """Return weights (1, T) and the method for the one gradient `weights @ G`, if that will do.

        A method that looks at the old gradients only through the sum of some of them is spared the
        T×T products this way: the weights are one number for those, and 0 for the others.
        """
        del T
        return None


def solve_checked(method: Method, C: HostArray, h: HostArray, tolerance: float) -> Solution:
    """Solve a batch of layers; raise if what comes back, maybe of a caller's method, is no use."""
    solution = method.solve_layers(C, h, tolerance)
    name = f"{type(method).__name__}.solve_layers"
    if not isinstance(solution, Solution):
        raise TypeError(
            f"{name} returned a {type(solution).__name__}: return gp.Solution(coefficients)"
        )
    if solution.coefficients.shape != h.shape:
        raise ValueError(
            f"{name} returned coefficients of shape {solution.coefficients.shape} for h of shape "
            f"{h.shape}: return one number a layer and old task"
        )
    if not np.isfinite(solution.coefficients).all():
        raise ValueError(
            f"{name} returned coefficients that hold NaN or infinity: see where it divides"
        )
    return solution


def check_strength(strength: float) -> None:
    """Raise unless `strength` is a finite number from 0 on."""
    real = int | float | np.integer | np.floating
    is_number = isinstance(strength, real) and not isinstance(strength, bool)
    if not (is_number and np.isfinite(strength) and strength >= 0):
        raise ValueError(f"strength={strength!r}: it should be a finite number from 0 on")
