"""The paper's method: constrain the shared part and project out the task-specific part."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import numpy.typing as npt

from gradproj._arrays import HostArray
from gradproj._basis import is_rank
from gradproj._method import Method, Solution, check_strength

Relaxation = Literal["pca", "first", "last"]


@dataclass(frozen=True)
class Decomposed(Method):
    r"""Gradient decomposition: spare what the old tasks share and what is each one's own.

    .. math:: \min_w \tfrac12 \|w - g\|^2 \quad \text{s.t.} \quad \bar g^\top w \ge 0
       \quad \text{and} \quad B w = 0

    with the shared gradient :math:`\bar g = \tfrac1T \sum_i g_i` and the rows of :math:`B` an
    orthonormal basis of the task-specific gradients :math:`\hat g_i = g_i - \bar g`. The closed
    form (Eq. 11 of the paper), with :math:`P = I - B^\top B`:

    .. math:: w = P g + \mu P \bar g, \qquad
       \mu = \max\left(0, -\frac{\bar g^\top P g}{\bar g^\top P \bar g}\right)

    Neither B nor P is formed: both are functions of :math:`G G^\top` and :math:`G g`.

    Parameters
    ----------
    rank : int, float or None
        How much of the task-specific part is projected out. None: all of it, the exact problem. An
        integer K: K directions at most; 0 leaves the shared constraint alone. A float in (0, 1): as
        few directions as hold that share of the variance.
    relaxation : {"pca", "first", "last"}
        Which K directions: the principal components, or the task-specific gradients of the first or
        the last K old tasks.
    shared, specific : bool
        Switch a constraint off.
    strength : float
        The memory strength :math:`\gamma`: :math:`\gamma \sum_i g_i` is added to the solution,
        outside the constraints. 0 is the paper's equations; GEM's published runs use 0.5. With both
        constraints off, what is left is plain replay, the control to measure a projection against.

    Notes
    -----
    The degenerate cases have defined answers. No old task: w = g. One, or equal ones: nothing is
    task-specific. Where :math:`\bar g^\top P \bar g` is zero up to rounding, nothing is corrected:
    a small layer under many tasks has no direction left that would help all of them.

    The constraints are about first order: at a large learning rate curvature makes the old tasks'
    losses grow all the same, and a positive `strength` is what brings them down again.

    References
    ----------
    Tang et al., Layerwise optimization by gradient decomposition for continual learning, CVPR 2021.

    Examples
    --------
    Both old tasks get the same :math:`\langle w, g_i \rangle`, and it is not negative:

    >>> import numpy as np
    >>> import gradproj as gp
    >>> g, G = np.asarray([1.0, 2.0, 1.0]), np.asarray([[-1.0, 1.0, 0.0], [-1.0, -1.0, 0.0]])
    >>> gp.project(g, G, gp.Decomposed())
    array([0., 0., 1.])
    >>> gp.project(g, G, gp.Decomposed(rank=0))
    array([0., 2., 1.])
    """

    rank: int | float | None = None
    relaxation: Relaxation = "pca"
    shared: bool = True
    specific: bool = True
    strength: float = 0.0

    def __post_init__(self) -> None:
        check_strength(self.strength)
        for name in ("shared", "specific"):
            if not isinstance(getattr(self, name), bool | np.bool_):
                raise ValueError(f"{name}={getattr(self, name)!r}: it should be True or False")
        if self.relaxation not in ("pca", "first", "last"):
            raise ValueError(
                f"relaxation={self.relaxation!r}: it should be 'pca', 'first' or 'last'"
            )
        if not is_rank(self.rank):
            raise ValueError(
                f"rank={self.rank!r}: it should be None for all directions, an integer from 0 on, "
                "or a float between 0 and 1 for a share of the variance"
            )
        if isinstance(self.rank, float | np.floating) and self.relaxation != "pca":
            raise ValueError(
                f"rank={self.rank!r} is a share of the variance, which goes with relaxation='pca'; "
                f"give relaxation={self.relaxation!r} a number of tasks"
            )

    def solve_layers(self, C: HostArray, h: HostArray, tolerance: float) -> Solution:
        layers, T = h.shape
        if T == 0:
            none = np.zeros(layers)
            return Solution(np.zeros((layers, 0)), none.astype(np.int64), none, none > 0)
        # In units of the longest old gradient, so that nothing below depends on the scale.
        longest = np.diagonal(C, axis1=1, axis2=2).max(1)
        unit = np.where(longest > 0, longest, 1.0)
        C, h = C / unit[:, None, None], h / unit[:, None]
        # Two vectors are projected, g and ḡ, each as its coefficients and its products with the
        # old gradients, side by side along the last axis.
        start = np.zeros((layers, T, 2))
        start[:, :, 1] = 1 / T
        products = np.stack([h, C.mean(2)], axis=2)
        basis = self._basis(C, tolerance)
        remover = basis.transpose(0, 2, 1) @ basis
        ends = start - remover @ products
        # Once more: what rounding left of a direction the first time is taken away now.
        products = products + C @ (ends - start)
        ends = ends - remover @ products
        c, p = ends[:, :, 0], ends[:, :, 1]  # P g = g + cᵀG, P ḡ = pᵀG
        rank = basis.any(2).sum(1)
        multiplier, corrected = np.zeros(layers), np.zeros(layers, bool)
        if self.shared:
            slope, square = (C @ ends).mean(1).T  # ḡᵀ(P g − g) and ḡᵀP ḡ
            slope = slope + h.mean(1)
            corrected = (slope < 0) & (square > tolerance)
            multiplier = np.divide(-slope, square, out=multiplier, where=corrected)
            c = c + multiplier[:, None] * p
        return Solution(c + self.strength, rank, multiplier, corrected)

    def _basis(self, C: HostArray, tolerance: float) -> HostArray:
        """Return D (L, K, T) with B = D G; the rows of directions that are left out are zero."""
        T = C.shape[-1]
        if not self._has_specific():
            return np.zeros((len(C), 0, T))
        centre = np.eye(T) - 1 / T
        chosen = slice(None)
        if self.relaxation != "pca" and self.rank is not None:
            count = min(int(self.rank), T)
            chosen = slice(0, count) if self.relaxation == "first" else slice(T - count, T)
        rows = centre[chosen]
        values, vectors = np.linalg.eigh(rows @ C @ rows.T)
        values, vectors = values[:, ::-1], vectors[:, :, ::-1]
        kept = self._kept(values, tolerance)
        scale = np.where(kept, 1 / np.sqrt(np.where(kept, values, 1.0)), 0.0)
        basis: HostArray = scale[:, :, None] * (vectors.transpose(0, 2, 1) @ rows)
        return basis

    def _kept(self, values: HostArray, tolerance: float) -> npt.NDArray[np.bool_]:
        """Which directions to project out, by their variances in falling order."""
        kept: npt.NDArray[np.bool_] = values > tolerance
        if isinstance(self.rank, float | np.floating):
            variance = np.where(kept, values, 0.0)
            before = np.cumsum(variance, axis=1) - variance
            kept &= before < self.rank * variance.sum(1, keepdims=True)
        elif self.rank is not None:
            kept[:, self.rank :] = False
        return kept

    def _has_specific(self) -> bool:
        return self.specific and self.rank != 0

    def _reduce(self, T: int) -> tuple[HostArray, Method] | None:
        if self._has_specific():
            return None
        return np.full((1, T), 1 / T), replace(self, strength=float(self.strength) * T)
