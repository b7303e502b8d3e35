"""The interface of a method: a function from inner products to coefficients."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from gradproj._arrays import HostArray
from gradproj._errors import NotFiniteError
from gradproj._products import Products

if TYPE_CHECKING:
    from gradproj._reduction import Reduction


@dataclass(frozen=True, eq=False)  # arrays have no single answer to ==
class Solution:
    r"""The coefficients that a method found, for one problem or for a batch of L layers.

    Only `coefficients` is required. `scale` defaults to 1; the other fields are diagnostics and
    default to 0.

    Attributes
    ----------
    coefficients : numpy.ndarray (T,) or (L, T)
        The :math:`c` of :math:`w = s\, g + G^\top c`.
    rank : numpy.ndarray of int, () or (L,)
        Decomposed: number of task-specific directions that were projected out. GEM: number of
        active constraints.
    multiplier : numpy.ndarray () or (L,)
        Dual variable of the inequality constraint; the largest one if there are several.
    corrected : numpy.ndarray of bool, () or (L,)
        Whether the new gradient violated an inequality constraint and was corrected.
    scale : numpy.ndarray () or (L,)
        The factor :math:`s` of the new gradient.

    Examples
    --------
    >>> import gradproj as gp
    >>> found = gp.AGEM().solve(gp.Products(C=[[4.0]], h=[-2.0]))
    >>> found.coefficients, found.multiplier, found.corrected
    (array([0.5]), array(0.5), array(True))
    """

    coefficients: HostArray
    rank: npt.NDArray[np.int64] = 0  # type: ignore[assignment]  # arrays, below
    multiplier: HostArray = 0.0  # type: ignore[assignment]
    corrected: npt.NDArray[np.bool_] = False  # type: ignore[assignment]
    scale: HostArray = 1.0  # type: ignore[assignment]

    def __post_init__(self) -> None:
        # A user-defined method may return lists, integers or strided arrays.
        coefficients = np.asarray(self.coefficients, dtype=np.float64, order="C")
        object.__setattr__(self, "coefficients", coefficients)
        for name, dtype in _PER_LAYER:
            given = np.asarray(getattr(self, name), dtype=dtype)
            if given.shape != coefficients.shape[:-1]:
                given = np.full(coefficients.shape[:-1], given)
            object.__setattr__(self, name, given)

    def __getitem__(self, layers: Any) -> Solution:
        """Return one layer or some layers of a batch."""
        return Solution(
            self.coefficients[layers], *(getattr(self, name)[layers] for name, _ in _PER_LAYER)
        )


_PER_LAYER: tuple[tuple[str, Any], ...] = (
    ("rank", np.int64),
    ("multiplier", np.float64),
    ("corrected", bool),
    ("scale", np.float64),
)


class Method(ABC):
    r"""A rule that changes the new gradient, given inner products only.

    .. math:: w = s\, g + G^\top c, \qquad (c, s) = \mathrm{solve}(G G^\top, G g, \|g\|^2)

    A subclass that defines :meth:`solve_layers` works in :func:`project`, :func:`project_layers`
    and the adapters. Two more methods are optional: :meth:`reduce` for methods that need only one
    combination of the old gradients, and :meth:`state_dict` for methods that change between steps.

    Examples
    --------
    >>> import numpy as np
    >>> import gradproj as gp
    >>> class Replay(gp.Method):
    ...     def solve_layers(self, products):
    ...         return gp.Solution(np.ones_like(products.h))
    >>> gp.project(np.asarray([1.0, 0.0]), np.asarray([[0.0, 3.0]]), Replay())
    array([1., 3.])
    """

    def solve(self, products: Products) -> Solution:
        """Solve one T-sized problem, or a batch of them with a leading layer axis.

        Parameters
        ----------
        products : Products
            From :func:`measure` or :func:`measure_layers`, or made from inner products of your own
            with ``gp.Products(C, h)``.

        Returns
        -------
        Solution
            With a leading layer axis if the products have one.

        Examples
        --------
        >>> import gradproj as gp
        >>> gp.GEM().solve(gp.Products(C=[[4.0, 0.0], [0.0, 1.0]], h=[-2.0, 3.0])).coefficients
        array([0.5, 0. ])
        """
        if not isinstance(products, Products):
            raise TypeError(
                f"products is a {type(products).__name__}: pass gp.measure(g, G) or "
                "gp.Products(C, h)"
            )
        if not products.finite.all():
            raise NotFiniteError(
                "C or h contains NaN or infinity: check the gradients that they come from"
            )
        if products.h.ndim == 1:
            return solve_checked(self, products[None])[0]
        return solve_checked(self, products)

    @abstractmethod
    def solve_layers(self, products: Products) -> Solution:
        r"""Solve a batch of layers. A subclass must define this method.

        Parameters
        ----------
        products : Products
            C (L, T, T), h (L, T), square (L,) and tolerance (L,), all finite except that `square`
            is NaN if the caller does not know it. T may be 0. A squared length that is computed
            from C as :math:`p^\top C p` is known to about ``tolerance`` times
            :math:`\sum_i p_i^2 \|g_i\|^2`; below that it counts as zero.

        Returns
        -------
        Solution
            With coefficients (L, T).
        """

    def reduce(self, T: int) -> Reduction | None:
        """Return the one combination of the T old gradients that this step needs, if there is one.

        It is called once per step, before :meth:`solve_layers`. A method that draws random numbers
        draws them here, so that all layers of a step see the same draw.

        Returns
        -------
        Reduction or None
            None if the method needs every inner product.

        Examples
        --------
        A method that looks at the sum of the old gradients only:

        >>> import numpy as np
        >>> import gradproj as gp
        >>> class Total(gp.GEM):
        ...     def reduce(self, T):
        ...         return gp.Reduction(weights=np.ones(T), method=gp.GEM())
        >>> gp.project(np.asarray([1.0, 0.0]), np.asarray([[-2.0, 1.0], [0.0, 1.0]]), Total())
        array([0.5, 0.5])
        """
        del T
        return None

    def state_dict(self) -> dict[str, Any]:
        """Return the state that changes between steps, as plain numbers, strings and dicts."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a :meth:`state_dict`."""
        if state:
            raise ValueError(
                f"state has {sorted(state)} but {type(self).__name__} has no state: load it into "
                "the method that it was saved from"
            )


def solve_checked(method: Method, products: Products) -> Solution:
    """Solve a batch of layers and validate the result, which may be of a user-defined method."""
    solution = method.solve_layers(products)
    name = f"{type(method).__name__}.solve_layers"
    if not isinstance(solution, Solution):
        raise TypeError(
            f"{name} returned a {type(solution).__name__}: return gp.Solution(coefficients)"
        )
    if solution.coefficients.shape != products.h.shape:
        raise ValueError(
            f"{name} returned coefficients of shape {solution.coefficients.shape} for h of shape "
            f"{products.h.shape}: return one number per layer and old task"
        )
    if not np.isfinite(solution.coefficients.sum() + solution.scale.sum()):
        raise ValueError(
            f"{name} returned coefficients or a scale with NaN or infinity: check its divisions"
        )
    return solution


Replay = Literal["mean", "sum"]


def check_strength(strength: float, name: str = "strength") -> None:
    """Raise unless `strength` is a finite number >= 0."""
    real = int | float | np.integer | np.floating
    is_number = isinstance(strength, real) and not isinstance(strength, bool)
    if not (is_number and np.isfinite(strength) and strength >= 0):
        raise ValueError(f"{name}={strength!r} is invalid: expected a finite number >= 0")


def check_replay(replay: str) -> None:
    """Raise unless `replay` says what the strength multiplies."""
    if replay not in ("mean", "sum"):
        raise ValueError(f"replay={replay!r} is invalid: expected 'mean' or 'sum'")
