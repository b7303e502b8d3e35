"""input_basis: GPM's rule of growth and SGP's importance weights."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import backends

import gradproj as gp


def gpm(R, M, share):
    """GPM's rule on representations as columns, as the paper states it (Saha et al. 2021)."""
    inside = M @ (M.T @ R)
    left, sizes, _ = np.linalg.svd(R - inside, full_matrices=False)
    reached = (np.linalg.norm(inside) ** 2 + np.r_[0, np.cumsum(sizes**2)]) / np.linalg.norm(R) ** 2
    k = int(np.argmax(reached >= share))
    return np.hstack([M, left[:, :k]])


@backends.every_backend
@given(seed=st.integers(0, 500), share=st.sampled_from([0.3, 0.9, 0.97, 0.999]))
def test_growth_is_that_of_gpm(library, seed, share):
    backend = backends.get(library)
    rng = np.random.default_rng(seed)
    basis, known = None, np.zeros((6, 0))
    for _ in range(3):
        R = (rng.standard_normal((6, 6)) * np.geomspace(1, 0.05, 6)) @ rng.standard_normal((6, 9))
        basis = gp.input_basis(backend.array(R @ R.T / 9), share=share, basis=basis)
        known = gpm(R, known, share)
        B = backend.numpy(basis.vectors)
        assert B.shape == (known.shape[1], 6)
        assert np.allclose(B @ B.T, np.eye(len(B)), atol=1e-10)
        assert np.allclose(B.T @ B, known @ known.T, atol=1e-8)
        assert np.array_equal(backend.numpy(basis.importance), np.ones(len(B)))


@backends.every_backend
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_importance_adds_up_to_one(library, dtype):
    backend = backends.get(library)
    first = np.diag(np.asarray([9.0, 4.0, 0.0], dtype))
    second = np.diag(np.asarray([0.0, 1.0, 16.0], dtype))
    basis = gp.input_basis(backend.array(first), share=0.99, scale=1.0)
    expected = [1.0, 2 * 2 / (2 + 3)]
    assert basis.importance.dtype == basis.vectors.dtype == backend.array(first).dtype
    assert np.allclose(backend.numpy(basis.importance), expected)
    basis = gp.input_basis(backend.array(second), share=0.99, scale=1.0, basis=basis)
    expected = [1.0, min(1.0, 4 / 5 + 2 * 1 / (1 + 4)), 1.0]
    assert np.allclose(backend.numpy(basis.importance), expected)
    weak = gp.input_basis(backend.array(first), share=0.99, scale=0.0)
    assert np.allclose(backend.numpy(weak.importance), [1.0, 2 / 3])


@backends.every_backend
@pytest.mark.parametrize("low_rank", [False, True])
@pytest.mark.parametrize("apart", [0.0, 1e-9])
def test_new_directions_are_orthogonal_to_old_ones_that_the_task_uses_most(
    library, low_rank, apart
):
    """Also if the old rows are orthonormal up to rounding only."""
    backend = backends.get(library)
    Q = np.linalg.qr(np.random.default_rng(2).standard_normal((8, 8)))[0]
    values = np.asarray([1e6, 1e5, 1.0, 0.5])
    old = Q[:2] + apart * Q[2:4]
    if low_rank:
        parts = (Q[:4], values, np.asarray(0.0))
        S = gp.LowRankMoments(*map(backend.array, parts))
    else:
        S = backend.array((Q[:4].T * values) @ Q[:4])
    basis = gp.input_basis(S, share=1.0, basis=backend.array(old))
    B = backend.numpy(basis.vectors)
    assert B.shape == (4, 8)
    assert np.abs(B[2:] @ B[:2].T).max() < 1e-14
    assert np.allclose(B[2:] @ B[2:].T, np.eye(2), atol=1e-14)
    assert np.allclose(B.T @ B, Q[:4].T @ Q[:4], atol=1e-6)


@pytest.mark.numpy_only
@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_degenerate_moments(share):
    zero = gp.input_basis(np.zeros((3, 3)), share=share, scale=1.0)
    assert zero.vectors.shape == (0, 3)
    one = gp.input_basis(np.asarray([[2.0]]), share=share)
    assert one.vectors.shape == (int(share > 0), 1)
    rank_one = gp.input_basis(np.ones((4, 4)), share=share)
    assert rank_one.vectors.shape == (int(share > 0), 4)
    full = gp.input_basis(np.eye(3), share=1.0)
    assert full.vectors.shape == (3, 3)
    again = gp.input_basis(np.ones((3, 3)), share=1.0, basis=full, scale=1.0)
    assert again.vectors.shape == (3, 3)


@pytest.mark.numpy_only
@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"S": np.ones(3)}, ValueError, r"S has shape \(3,\): expected a matrix \(in, in\)"),
        ({"S": np.ones((3, 2))}, ValueError, r"S has shape \(3, 2\): expected a square"),
        ({"S": np.full((2, 2), np.nan)}, gp.NotFiniteError, "S contains NaN or infinity"),
        ({"S": np.eye(3), "share": 1.1}, ValueError, r"share=1\.1 is invalid: expected"),
        ({"S": np.eye(3), "scale": -1}, ValueError, r"scale=-1 is invalid: expected"),
        ({"S": np.eye(3), "basis": np.eye(2)}, ValueError, r"basis has shape \(2, 2\): expected"),
        ({"S": np.eye(3), "basis": np.ones((1, 3))}, ValueError, "not orthonormal"),
    ],
)
def test_wrong_arguments(arguments, error, message):
    with pytest.raises(error, match=message):
        gp.input_basis(**arguments)
