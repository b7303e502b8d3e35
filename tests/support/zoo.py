"""Gradients that make projections stumble, by name and at random."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from gradproj._measure import SMALL

_rng = np.random.default_rng(20210619)


def _normal(*shape: int) -> np.ndarray:
    return _rng.standard_normal(shape)


def _softmax_bias() -> np.ndarray:
    """Ten numbers that sum to zero, under 12 tasks: 9 dimensions for 11 residuals."""
    rows = _normal(12, 10)
    return rows - rows.mean(1, keepdims=True)


def lengthened(x: np.ndarray) -> np.ndarray:
    """Append zeros, so that float32 gradients are too long to be computed in float64."""
    return np.concatenate([x, np.zeros((*x.shape[:-1], SMALL), x.dtype)], axis=-1)


NAMED: dict[str, np.ndarray] = {
    "one number": np.asarray([[2.0]]),
    "one task": _normal(1, 7),
    "equal": np.tile(_normal(1, 9), (4, 1)),
    "equal thirds": np.tile(np.full((1, 5), 1 / 3), (7, 1)),
    "opposite": np.asarray([[1.0, -2.0, 3.0], [-1.0, 2.0, -3.0]]),
    "opposite of many": np.vstack([row := _normal(3, 8), -row]),
    "all zero": np.zeros((3, 6)),
    "one zero": np.vstack([_normal(3, 6), np.zeros((1, 6))]),
    "collinear": np.outer([1.0, 2.0, -3.0, 0.5], _normal(6)),
    "orthogonal": np.eye(5, 8) * [[1.0], [2.0], [3.0], [4.0], [5.0]],
    "integers": np.asarray([[1.0, 0.0, 1.0], [0.0, 1.0, 1.0], [1.0, 1.0, 2.0], [1.0, -1.0, 0.0]]),
    "fewer numbers than tasks": _normal(9, 3),
    "ten-number layer under 12 tasks": _softmax_bias(),
    "rank 2 of 6": _normal(6, 2) @ _normal(2, 20),
    "unlike lengths": _normal(5, 30) * np.asarray([[1e-3], [1.0], [1e2], [1.0], [1e-2]]),
    "nearly equal": _normal(30) + 1e-3 * _normal(4, 30),
    "many tasks": _normal(40, 100) + _normal(100),
    "tiny": 1e-30 * _normal(4, 12),
    "huge": 1e30 * _normal(4, 12),
}


@st.composite
def gradients(draw: st.DrawFn, max_tasks: int = 9) -> tuple[np.ndarray, np.ndarray]:
    """Draw (g, G) in float64: a shared part, specific parts of a drawn rank and decay, a scale.

    The task-specific singular values are either at least 1e-3 of the largest or zero, so that the
    rank is not a matter of opinion.
    """
    T = draw(st.integers(1, max_tasks))
    N = draw(st.integers(1, 30))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    rank = draw(st.integers(0, min(T, N)))
    decay = 10.0 ** -draw(st.floats(0, 3))
    spectrum = decay ** np.linspace(0, 1, rank)
    left = np.linalg.qr(rng.standard_normal((T, T)))[0][:, :rank]
    right = np.linalg.qr(rng.standard_normal((N, N)))[0][:rank]
    shared = draw(st.sampled_from([0.0, 0.1, 1.0])) * rng.standard_normal(N)
    G = left * spectrum @ right + shared
    if draw(st.booleans()):
        G[rng.integers(T)] = draw(st.sampled_from([0.0, 1.0, -1.0])) * G[rng.integers(T)]
    g = rng.standard_normal(N)
    pull = draw(st.sampled_from([0.0, 1.0, -1.0, -10.0]))
    g = g + pull * G.mean(0)
    scale_g, scale_G = draw(
        st.sampled_from([(1.0, 1.0), (1e-6, 1e3), (1e30, 1e-30), (1e-30, 1e30)])
    )
    return g * scale_g, G * scale_G


def new_gradient(G: np.ndarray, seed: int = 0) -> np.ndarray:
    """A new gradient for a named matrix that conflicts with the mean of its rows."""
    rng = np.random.default_rng(seed)
    size = np.abs(G).max() or 1.0
    return rng.standard_normal(G.shape[1]) - 0.5 * G.mean(0) / size


def as_code(**arrays: np.ndarray) -> str:
    """Return Python code that makes these arrays again, to the last bit."""
    return "\n".join(
        f"{name} = np.frombuffer(bytes.fromhex({x.tobytes().hex()!r}), {x.dtype.name!r})"
        f".reshape({x.shape})"
        for name, x in arrays.items()
    )
