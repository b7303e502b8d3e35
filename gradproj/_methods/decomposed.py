"""The paper's method: constrain the shared part and project out the task-specific part."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import numpy.typing as npt

from gradproj._arrays import HostArray
from gradproj._basis import is_rank
from gradproj._method import Method, Replay, Solution, check_replay, check_strength
from gradproj._methods.agem import AGEM
from gradproj._products import Products
from gradproj._reduction import Reduction

Relaxation = Literal["pca", "first", "last"]
Rule = Literal["always", "violated", "part-margin"]

# A divisor for rows of gradients that are all zero.
_TINY = 1e-300
# Cholesky is used if the squared rounding error of a basis, summed over its directions, is below
# this number, and eigenvectors otherwise.
_CLEAR = 0.1


@dataclass(frozen=True)
class Decomposed(Method):
    r"""Gradient decomposition: constrain what the old tasks share, project out what they do not.

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
        integer K: at most K directions; 0 leaves only the shared constraint. A float in (0, 1): the
        fewest directions that hold that share of the variance.
    relaxation : {"pca", "first", "last"}
        Which K directions: the principal components, or the span of the task-specific gradients of
        the first or the last K old tasks.
    shared, specific : bool
        Switch a constraint off.
    strength : float
        The memory strength :math:`\gamma`: how much of the old gradients is added to the solution,
        outside the constraints. 0 gives the paper's equations. With both constraints off, plain
        replay remains, which is the control for every projection.
    replay : {"mean", "sum"}
        The term that `strength` multiplies: the mean of the old gradients,
        :math:`\gamma \bar g`, or their sum, :math:`\gamma \sum_i g_i`. The sum grows with the
        number of tasks, and a learning rate that works for two tasks may be too large for twenty.
        The paper's numbers need the sum with 0.5, as in GEM's published runs.
    rule : {"always", "violated", "part-margin"}
        When the replayed gradient :math:`r` (their mean or sum) is added to the solution
        :math:`w^*`. "always": :math:`w^* + \gamma r`. "violated": only where
        :math:`\bar g^\top P g < 0`. "part-margin", the rule of the paper's released code: only
        where it is violated or there is one old task, and then the multiplier of :math:`r` counts
        towards the strength, :math:`w^* + \max(0, \gamma - \mu) r`. The last two make the update
        discontinuous where the constraint begins to be violated.

    Notes
    -----
    The degenerate cases have defined answers. Without old tasks, w = g. With one old task, or with
    equal ones, nothing is task-specific. Where :math:`\bar g^\top P \bar g` is zero up to rounding,
    nothing is corrected: a small layer with many old tasks may have no direction that helps all.

    The constraints hold to first order. At a large learning rate, curvature can increase the old
    tasks' losses all the same, and a positive `strength` reduces them again.

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
    replay: Replay = "mean"
    rule: Rule = "always"

    def __post_init__(self) -> None:
        check_strength(self.strength)
        check_replay(self.replay)
        if self.rule not in ("always", "violated", "part-margin"):
            raise ValueError(
                f"rule={self.rule!r} is invalid: expected 'always', 'violated' or 'part-margin'"
            )
        for name in ("shared", "specific"):
            if not isinstance(getattr(self, name), bool | np.bool_):
                raise ValueError(
                    f"{name}={getattr(self, name)!r} is invalid: expected True or False"
                )
        if self.relaxation not in ("pca", "first", "last"):
            raise ValueError(
                f"relaxation={self.relaxation!r} is invalid: expected 'pca', 'first' or 'last'"
            )
        if not is_rank(self.rank):
            raise ValueError(
                f"rank={self.rank!r} is invalid: expected an integer >= 0, a float in (0, 1) for a "
                "share of the variance, or None for all directions"
            )
        if isinstance(self.rank, float | np.floating) and self.relaxation != "pca":
            raise ValueError(
                f"rank={self.rank!r} is a share of the variance, which needs relaxation='pca': "
                f"with relaxation={self.relaxation!r} pass a number of tasks"
            )

    def solve_layers(self, products: Products) -> Solution:
        C, length, tolerance = products.C, products.lengths, products.tolerance
        layers, T = products.h.shape
        if T == 0:
            return Solution(products.h)
        # Two vectors are projected, g and ḡ, side by side along the last axis: their coefficients,
        # and their products with the old gradients.
        start, along = np.zeros((layers, T, 2)), np.empty((layers, T, 2))
        start[:, :, 1] = 1 / T
        along[:, :, 0], along[:, :, 1] = products.h, C.mean(2)
        ends, sizes = start, start[:, :, 1]
        basis, rank = self._basis(C, length, tolerance)
        if basis.shape[1]:
            across = basis.transpose(0, 2, 1)
            ends = start - across @ (basis @ along)
            # A second pass removes the rounding error of the first.
            ends = ends - across @ (basis @ (along + C @ (ends - start)))
            sizes = sizes + (abs(across) @ (abs(basis) @ abs(along[:, :, 1:])))[:, :, 0]
        c, p = ends[:, :, 0], ends[:, :, 1]  # P g = g + cᵀG and P ḡ = pᵀG
        multiplier, violated = np.zeros(layers), np.zeros(layers, bool)
        if self.shared or self.rule != "always":
            # ‖P ḡ‖² and ⟨P ḡ, P g⟩ from p itself: their rounding error then shrinks with p.
            p_along = (C @ p[:, :, None])[:, :, 0]
            square = (p * p_along).sum(1)
            slope = (p * products.h + c * p_along).sum(1)
            # p is a small difference of larger terms, and has their rounding error. It matters
            # where one gradient is zero and all others are in the basis.
            noise = tolerance * ((p * length) ** 2).sum(1)
            noise += ((_error(1) * sizes * length) ** 2).sum(1)
            violated = (slope < 0) & (square > noise)
        corrected = violated & self.shared
        if self.shared:
            multiplier = np.divide(-slope, square, out=multiplier, where=corrected)
            c = c + multiplier[:, None] * p
        c = c + self._added(T, multiplier, violated)[:, None] / T
        return Solution(c, rank, multiplier, corrected)

    def reduce(self, T: int) -> Reduction | None:
        if self._has_specific():
            return None
        strength = self._replayed(T)
        weights = np.full(T, 1 / T)
        if self.rule != "part-margin" or T == 1:
            return Reduction(weights, replace(self, strength=strength))
        # The rule differs for one old task, and the reduction leaves one. These two methods do to
        # the mean of several tasks what this method does to the tasks.
        if self.shared:
            return Reduction(weights, AGEM(strength))
        return Reduction(weights, replace(self, strength=strength, rule="violated"))

    def _added(self, T: int, multiplier: HostArray, violated: npt.NDArray[np.bool_]) -> HostArray:
        """Return the factor of the mean of T old gradients that the rule adds, for each layer."""
        full = np.full(len(multiplier), self._replayed(T))
        if self.rule == "always":
            return full
        if self.rule == "violated":
            return full * violated
        return np.maximum(full - multiplier, 0.0) * (violated | (T == 1))

    def _replayed(self, T: int) -> float:
        """Return the strength as a factor of the mean of T old gradients."""
        return float(self.strength) * (T if self.replay == "sum" else 1)

    def _has_specific(self) -> bool:
        return self.specific and self.rank != 0

    def _basis(
        self, C: HostArray, length: HostArray, tolerance: HostArray
    ) -> tuple[HostArray, npt.NDArray[np.int64]]:
        """Return D (L, K, T) such that the rows of D G are the basis B or zero, and the rank."""
        layers, T = length.shape
        if not self._has_specific() or T == 1:
            return np.zeros((layers, 0, T)), np.zeros(layers, np.int64)
        if self.relaxation == "pca":
            if self.rank is None or (self.rank >= 1 and self.rank >= T - 1):
                return _orthonormal(_differences(length, slice(0, T)), C, length, tolerance)
            return self._principal(C, length, tolerance)
        count = T if self.rank is None else min(int(self.rank), T)
        chosen = slice(0, count) if self.relaxation == "first" else slice(T - count, T)
        rows = _differences(length, chosen)
        if count < T:
            # The span of ĝᵢ for the chosen tasks: one of them, and their differences.
            centred = (np.eye(T) - 1 / T)[_shortest(length, chosen)]
            rows = np.concatenate([centred[:, None], rows], axis=1)
        return _orthonormal(rows, C, length, tolerance)

    def _principal(
        self, C: HostArray, length: HostArray, tolerance: HostArray
    ) -> tuple[HostArray, npt.NDArray[np.int64]]:
        """Return D and the rank for the principal components of the task-specific gradients."""
        T = C.shape[-1]
        centre = np.eye(T) - 1 / T
        values, vectors = np.linalg.eigh(centre @ C @ centre)
        values, rows = values[:, ::-1], vectors[:, :, ::-1].transpose(0, 2, 1) @ centre
        least = _error(T) * (length**2).max(1, keepdims=True)
        kept = values > np.maximum(tolerance[:, None] * _terms(rows, length), least)
        if isinstance(self.rank, float | np.floating):
            variance = np.where(kept, values, 0.0)
            before = np.cumsum(variance, axis=1) - variance
            kept &= before < self.rank * variance.sum(1, keepdims=True)
        else:
            kept[:, self.rank :] = False
        return _unit(rows, values, kept)


def _differences(length: HostArray, chosen: slice) -> HostArray:
    """Return rows R such that the rows of R G are the chosen gradients minus the shortest of them.

    They span the same space as differences from the mean. But each is about as long as its own
    gradient, so that a long gradient does not drown the short ones in rounding.
    """
    single, shortest = np.eye(length.shape[1]), _shortest(length, chosen)[:, None]
    others = np.arange(chosen.start, chosen.stop - 1)
    rows: HostArray = single[others + (others >= shortest)] - single[shortest]
    return rows


def _shortest(length: HostArray, chosen: slice) -> npt.NDArray[np.int64]:
    """Return which of the chosen gradients is the shortest, for each layer."""
    found: npt.NDArray[np.int64] = length[:, chosen].argmin(1) + chosen.start
    return found


def _orthonormal(
    rows: HostArray, C: HostArray, length: HostArray, tolerance: HostArray
) -> tuple[HostArray, npt.NDArray[np.int64]]:
    """Return D such that the rows of D G are an orthonormal basis of the span of `rows` @ G.

    Each row is divided by the length of its terms first. All products then have the same rounding
    error, however much the old gradients differ in length.
    """
    K = rows.shape[1]
    rows = rows / np.sqrt(np.maximum(_terms(rows, length), _TINY))[:, :, None]
    products = rows @ C @ rows.transpose(0, 2, 1)
    least = _error(K)
    try:
        # Gram–Schmidt by Cholesky, in a fifth of the time of eigenvectors. It is as good if no
        # direction is near the rounding error.
        basis = np.linalg.solve(np.linalg.cholesky(products), rows)
        unclear = ~(np.maximum(tolerance, least) * _terms(basis, length).sum(1) < _CLEAR)
    except np.linalg.LinAlgError:
        basis, unclear = rows, np.ones(len(rows), bool)
    rank = np.full(len(rows), K)
    if unclear.any():
        values, vectors = np.linalg.eigh(products[unclear])
        found = vectors.transpose(0, 2, 1) @ rows[unclear]
        rounding = tolerance[unclear, None] * _terms(found, length[unclear])
        kept = values > np.maximum(rounding, least)
        basis[unclear], rank[unclear] = _unit(found, values, kept)
    return basis, rank


def _error(size: int) -> float:
    """Return the relative error of the decomposition of a matrix of that size."""
    return 16 * size * float(np.finfo(np.float64).eps)


def _terms(rows: HostArray, length: HostArray) -> HostArray:
    """Return the squared lengths of the terms of each row of `rows` @ G, added up."""
    found: HostArray = ((rows * length[:, None, :]) ** 2).sum(2)
    return found


def _unit(
    rows: HostArray, squares: HostArray, kept: npt.NDArray[np.bool_]
) -> tuple[HostArray, npt.NDArray[np.int64]]:
    """Divide each row by its length and set those that are not kept to zero; count the others."""
    scale = kept / np.sqrt(np.where(kept, squares, 1.0))
    return scale[:, :, None] * rows, kept.sum(1)
