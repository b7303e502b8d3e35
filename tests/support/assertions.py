"""Named assertions: the conditions under which an update solves its problem."""

from __future__ import annotations

import numpy as np
from scipy.linalg import svd
from scipy.optimize import lsq_linear, nnls

import gradproj as gp


def explicit_basis(G: np.ndarray, method: gp.Decomposed) -> np.ndarray:
    """Return a method's basis B from the explicit algorithm, at the tolerance of `project`."""
    if not method.specific or method.rank == 0:
        return np.zeros((0, G.shape[1]))
    _, specific = gp.decompose(G)
    scale = float(np.linalg.norm(G, axis=1).max())
    if method.rank is not None and method.relaxation != "pca":
        count = int(method.rank)
        specific = specific[:count] if method.relaxation == "first" else specific[-count:]
        return gp.gram_schmidt(specific, tolerance=3e-7, scale=scale)
    largest = float(np.linalg.norm(specific / scale, 2)) if scale else 0.0
    if largest <= 3e-7:
        return np.zeros((0, G.shape[1]))
    return gp.principal_components(specific, method.rank, tolerance=3e-7 / largest)


def shared_gradient(G: np.ndarray, method: gp.Decomposed) -> np.ndarray:
    """Return the mean of the rows, or zero if the method ignores it or the basis contains it."""
    shared, B = G.mean(0), explicit_basis(G, method)
    noise = 1e-13 * np.linalg.norm(G, axis=1).max()
    free = np.linalg.norm(shared - B.T @ (B @ shared)) > noise
    return shared if method.shared and free else np.zeros_like(shared)


def condition(G: np.ndarray, method: gp.Decomposed) -> float:
    """Return the longest old gradient over the shortest length that the constraints depend on.

    These lengths are the task-specific singular values (of the rows in use) and the length of P ḡ.
    Lengths that are zero up to rounding do not count.
    """
    scale = float(np.linalg.norm(G, axis=1).max())
    if scale == 0:
        return 1.0
    sizes = []
    B = explicit_basis(G, method)
    if len(B):
        _, specific = gp.decompose(G / scale)
        if method.rank is not None and method.relaxation != "pca":
            count = int(method.rank)
            specific = specific[:count] if method.relaxation == "first" else specific[-count:]
        sizes += [*np.linalg.svd(specific, compute_uv=False)[: len(B)]]
    if method.shared:
        shared = G.mean(0) / scale
        sizes.append(np.linalg.norm(shared - B.T @ (B @ shared)))
    return 1 / min((size for size in sizes if size > 1e-13), default=1.0)


def rounding(G: np.ndarray, method: gp.Decomposed, least: float = 1e-9) -> float:
    """Return the residual that float64 allows, over ‖g‖: inner products square the condition."""
    return max(least, 200 * np.finfo(float).eps * condition(G, method) ** 2)


def replayed(G: np.ndarray, method: gp.Decomposed) -> np.ndarray:
    """Return the replay term of a method."""
    return method.strength * (G.sum(0) if method.replay == "sum" else G.mean(0))


def assert_kkt(w: np.ndarray, g: np.ndarray, G: np.ndarray, method: gp.Decomposed) -> None:
    """Assert that the update without its replay term satisfies the optimality conditions.

    The relative tolerance is 1e-9 up to a condition of 150.
    """
    shared = shared_gradient(G, method)
    solution = w - replayed(G, method)
    residuals = gp.kkt_residuals(solution, g, shared, explicit_basis(G, method))
    assert residuals.worst <= rounding(G, method), residuals


def assert_kkt_gem(
    w: np.ndarray, g: np.ndarray, G: np.ndarray, v: np.ndarray, strength: float, tolerance: float
) -> None:
    """Assert stationarity, primal and dual feasibility and slackness of GEM's problem."""
    size = np.linalg.norm(g) or 1.0
    length = np.where((norm := np.linalg.norm(G, axis=1)) > 0, norm, 1.0)
    pull = v * length / size  # the multipliers of unit gradients
    unit = max(1.0, pull.max(initial=0.0))
    assert np.linalg.norm(w - g - v @ G) <= tolerance * size * unit
    if not (G @ g < 0).any():
        assert np.array_equal(w, g)
        return
    products = G @ w / length / size
    assert products.min() >= -tolerance * unit
    assert (v >= strength * (1 - 1e-12)).all()
    slack = (v - strength) * length / size * products
    assert np.abs(slack).max() <= tolerance * unit**2


def by_least_squares(g: np.ndarray, shared: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Solve the paper's problem with SciPy alone, through its dual.

    The update is the shortest of g + μ ḡ + ν Q with μ ≥ 0 and the ν free, Q spanning the rows.
    """
    scale = np.linalg.norm(g) or 1.0
    longest = max(np.linalg.norm(shared + rows, axis=1).max(), 1e-300)
    _, sizes, right = svd(rows / longest, full_matrices=False)
    Q = right[sizes > 3e-7]
    outside = shared / longest
    outside = outside - (outside @ Q.T) @ Q
    columns = [*Q, *([outside] if np.linalg.norm(outside) > 3e-7 else [])]
    if not columns:
        return g
    low = np.full(len(columns), -np.inf)
    low[len(Q) :] = 0.0
    A = np.stack(columns, axis=1)
    x = lsq_linear(A, -g / scale, bounds=(low, np.inf), method="bvls", tol=1e-15).x
    return g + scale * (A @ x)


def gem_by_least_squares(g: np.ndarray, G: np.ndarray) -> np.ndarray:
    """Solve GEM's problem with SciPy's least squares on the N×T dual: the shortest of two answers.

    Either solver alone fails at times: `nnls` where gradients are nearly parallel, with negative
    multipliers, and the bounded one where they are opposite, far from the optimum.
    """
    scale = np.linalg.norm(g) or 1.0
    A = np.stack([r / (np.linalg.norm(r) or 1.0) for r in G], axis=1)
    bounded = lsq_linear(A, -g / scale, (0, np.inf), method="bvls", tol=1e-15, max_iter=1000)
    multipliers = (nnls(A, -g / scale, maxiter=1000)[0], bounded.x)
    found = [g + scale * (A @ np.maximum(v, 0.0)) for v in multipliers]
    return min(found, key=np.linalg.norm)
