"""Soft and hard preservation solve their problems, on every library."""

import math

import array_api_compat
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import backends

import gradproj as gp

EPS = {np.float32: 1.2e-7, np.float64: 2.3e-16}
dtypes = st.sampled_from([np.float32, np.float64])


@st.composite
def problems(draw):
    """A gradient (out, in) and moments S: of any rank, zero, or with repeated eigenvalues."""
    rng = np.random.default_rng(draw(st.integers(0, 1000)))
    out, n = draw(st.integers(0, 5)), draw(st.integers(1, 12))
    rank = draw(st.integers(0, n))
    Q = np.linalg.qr(rng.standard_normal((n, n)))[0][:, :rank]
    values = draw(
        st.sampled_from([np.ones(rank), rng.uniform(0.1, 2, rank), np.geomspace(1, 1e3, n)[:rank]])
    )
    size = 10.0 ** draw(st.integers(-3, 3))
    return rng.standard_normal((out, n)), size * (Q * values) @ Q.T


def assert_alike(result, like):
    assert type(result) is type(like)
    assert result.dtype == like.dtype
    assert array_api_compat.device(result) == array_api_compat.device(like)


def kept_by_hand(S, dtype):
    """The projector onto the null space, by singular values."""
    left, values, _ = np.linalg.svd(S)
    V = left[:, values > 100 * EPS[dtype] * max(values.max(initial=0), 1e-300)]
    return np.eye(len(S)) - V @ V.T


@backends.every_backend
@given(case=problems(), strength=st.sampled_from([0.0, 0.1, 1.0, 30.0]), dtype=dtypes)
def test_soft_is_optimal_and_never_increases_the_change_of_old_answers(
    library, case, strength, dtype
):
    backend = backends.get(library)
    g, S = (x.astype(dtype) for x in case)
    ours = backend.array(g)
    w = gp.preserve(ours, backend.array(S), strength=strength)
    assert_alike(w, ours)
    w, g, S = (x.astype(np.float64) for x in (backend.numpy(w), g, S))
    size = np.linalg.norm(g)
    top = np.linalg.norm(S, 2)
    rounding = 50 * EPS[dtype] * size
    assert np.linalg.norm(w + strength * (w @ S) - g) <= rounding * (1 + strength * top)
    assert np.trace(w @ S @ w.T) <= np.trace(g @ S @ g.T) + rounding * size * top
    assert np.sum(w * g) >= size**2 / (1 + strength * top) / 2
    if strength == 0:
        assert np.allclose(w, g, rtol=0, atol=rounding)


@backends.every_backend
@given(case=problems(), dtype=dtypes)
def test_the_limit_of_the_strength_is_the_hard_projection(library, case, dtype):
    backend = backends.get(library)
    g, S = (x.astype(dtype) for x in case)
    expected = g @ kept_by_hand(S, dtype)
    tolerance = 1e-4 * np.linalg.norm(g) if dtype == np.float32 else 1e-9 * np.linalg.norm(g)
    hard = gp.preserve(backend.array(g), backend.array(S), strength=math.inf)
    assert np.allclose(backend.numpy(hard), expected, rtol=0, atol=tolerance)
    strong = 1e17 / max(float(np.linalg.norm(S, 2)), 1e-9)
    limit = gp.preserve(backend.array(g), backend.array(S), strength=strong)
    assert np.allclose(backend.numpy(limit), expected, rtol=0, atol=tolerance)


@given(case=problems(), strength=st.sampled_from([0.0, 0.1, 1.0, 30.0]))
@pytest.mark.numpy_only
def test_a_factor_of_S_is_a_factor_of_the_strength(case, strength):
    g, S = case
    found = gp.preserve(g, 8 * S, strength=strength)
    assert np.allclose(found, gp.preserve(g, S, strength=8 * strength), rtol=0, atol=1e-12)


@given(case=problems(), seed=st.integers(0, 99), strength=st.sampled_from([1.0, 30.0, math.inf]))
@pytest.mark.numpy_only
def test_a_rotation_of_the_inputs_rotates_the_update(case, seed, strength):
    g, S = case
    n = len(S)
    Q = np.linalg.qr(np.random.default_rng(seed).standard_normal((n, n)))[0]
    found = gp.preserve(g @ Q, Q.T @ S @ Q, strength=strength)
    expected = gp.preserve(g, S, strength=strength) @ Q
    assert np.allclose(found, expected, rtol=0, atol=1e-9)


@backends.every_backend
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_groups_are_independent_problems(library, dtype):
    backend = backends.get(library)
    rng = np.random.default_rng(0)
    g = rng.standard_normal((3, 4, 5)).astype(dtype)
    a = rng.standard_normal((3, 7, 5)).astype(dtype)
    moments = gp.InputMoments()
    moments.update(backend.array(a))
    S = moments.matrix()
    for strength in (2.0, math.inf):
        w = backend.numpy(gp.preserve(backend.array(g), S, strength=strength))
        for k in range(3):
            alone = gp.preserve(g[k], backend.numpy(S)[k], strength=strength)
            assert np.allclose(w[k], alone, rtol=0, atol=100 * EPS[dtype])
    shared = gp.preserve(backend.array(g), S[0, :, :], strength=2.0)
    assert shared.shape == (3, 4, 5)


@backends.every_backend
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_diagonal_moments_are_those_of_a_diagonal_matrix(library, dtype):
    backend = backends.get(library)
    g, s = np.ones((2, 3), dtype), np.asarray([0.0, 1.0, 3.0], dtype)
    for strength in (0.0, 1.0, math.inf):
        w = gp.preserve(backend.array(g), backend.array(s), strength=strength)
        assert_alike(w, backend.array(g))
        full = gp.preserve(g, np.diag(s), strength=strength)
        assert np.allclose(backend.numpy(w), full, rtol=0, atol=10 * EPS[dtype])


@backends.every_backend
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("k", [0, 1, 2, 5])
def test_a_basis_is_removed(library, dtype, k):
    backend = backends.get(library)
    rng = np.random.default_rng(k)
    B = np.linalg.qr(rng.standard_normal((5, 5)))[0][:k].astype(dtype)
    g = rng.standard_normal((3, 5)).astype(dtype)
    ours = backend.array(g)
    w = gp.preserve(ours, basis=backend.array(B))
    assert_alike(w, ours)
    assert np.allclose(backend.numpy(w), g - g @ B.T @ B, rtol=0, atol=20 * EPS[dtype])
    weights = rng.uniform(0, 1, k).astype(dtype)
    basis = gp.InputBasis(backend.array(B), backend.array(weights))
    w = backend.numpy(gp.preserve(ours, basis=basis))
    assert np.allclose(w, g - g @ B.T * weights @ B, rtol=0, atol=20 * EPS[dtype])


@backends.every_backend
@pytest.mark.parametrize("kind", ["dense", "diagonal", "basis"])
def test_out_receives_the_update(library, kind):
    backend = backends.get(library)
    S = backend.array(
        np.asarray([0.0, 1.0, 3.0]) if kind == "diagonal" else np.diag([0.0, 1.0, 3.0])
    )
    if kind == "basis":
        factor = gp.Preservation.hard(backend.array(np.eye(3)[:1]))
    else:
        factor = gp.Preservation.soft(S, 1.0)
    assert (factor.matrix is not None) == (kind == "dense")
    g = backend.array(np.ones((2, 3)))
    expected = backend.numpy(factor.apply(g))
    if library == "numpy-readonly":
        with pytest.raises((ValueError, TypeError), match=r"read-only|cannot be written"):
            factor.apply(g, out=g)
        return
    out = backend.array(np.zeros((2, 3)))
    assert factor.apply(g, out=out) is out
    assert np.array_equal(backend.numpy(out), expected)
    assert np.array_equal(backend.numpy(g), np.ones((2, 3)))
    assert factor.apply(g, out=g) is g
    assert np.array_equal(backend.numpy(g), expected)


@pytest.mark.parametrize("library", ["numpy", "torch", "cupy-standin-device1"])
def test_half_precision(library):
    backend = backends.get(library)
    rng = np.random.default_rng(0)
    g, a = rng.standard_normal((3, 4)), rng.standard_normal((9, 4))
    ours = backend.array(g.astype(np.float16))
    moments = gp.InputMoments()
    moments.update(backend.array(a.astype(np.float16)))
    S = moments.matrix()
    assert backend.numpy(S).dtype == np.float32
    w = gp.preserve(ours, S, strength=2.0)
    assert_alike(w, ours)
    wide = gp.preserve(backend.numpy(ours).astype(np.float32), backend.numpy(S), strength=2.0)
    assert np.allclose(backend.numpy(w), wide, rtol=0, atol=2e-3)


def test_autocast_does_not_reach_the_products():
    torch = pytest.importorskip("torch", reason="torch is not installed")
    rng = np.random.default_rng(0)
    g, a = (
        torch.tensor(rng.standard_normal(shape), dtype=torch.float32) for shape in [(3, 9), (40, 9)]
    )
    results = []
    for enabled in (False, True):
        with torch.autocast("cpu", enabled=enabled):
            moments = gp.InputMoments()
            moments.update(a)
            results.append(gp.preserve(g, moments.matrix(), strength=3.0))
    assert torch.equal(*results)


@pytest.mark.numpy_only
@pytest.mark.parametrize("negative", [-1e-6, -0.5])
@pytest.mark.parametrize("strength", [1e9, math.inf])
def test_negative_eigenvalues_of_rounding_count_as_zero_and_others_are_refused(negative, strength):
    Q = np.linalg.qr(np.random.default_rng(1).standard_normal((4, 4)))[0]
    S = ((Q * [negative, 0.0, 1.0, 2.0]) @ Q.T).astype(np.float32)
    g = np.ones((1, 4), np.float32)
    if negative < -0.1:
        with pytest.raises(ValueError, match=r"S has the eigenvalue -0\.5 and the largest is 2: "):
            gp.preserve(g, S, strength=strength)
        return
    expected = g @ (Q[:, :2] @ Q[:, :2].T)
    assert np.allclose(gp.preserve(g, S, strength=strength), expected, atol=1e-5)


g, S = np.ones((2, 3)), np.eye(3)


@pytest.mark.numpy_only
@pytest.mark.parametrize(
    ("arguments", "options", "error", "message"),
    [
        ((g,), {}, TypeError, "pass either S with a strength, or a basis"),
        ((g, S), {"basis": S}, TypeError, "pass either S with a strength, or a basis"),
        ((g, S), {}, TypeError, "strength is missing: pass S with strength=λ"),
        ((g,), {"basis": S, "strength": 1}, TypeError, "strength has no meaning with a basis"),
        ((g, S), {"strength": -1}, ValueError, r"strength=-1 is invalid: expected a number >= 0"),
        ((g, S), {"strength": math.nan}, ValueError, "strength=nan is invalid"),
        ((g[0], S), {"strength": 1}, ValueError, r"g has shape \(3,\): expected a matrix"),
        (
            (g, np.eye(4)),
            {"strength": 1},
            ValueError,
            r"g has shape \(2, 3\): expected \(\.\.\., r",
        ),
        ((g, g), {"strength": 1}, ValueError, r"S has shape \(2, 3\): expected a square matrix"),
        ((g, np.ones((2, 3, 3))), {"strength": 1}, ValueError, r"expected \(2, rows, 3\), as the"),
        ((g, [[1.0]]), {"strength": 1}, TypeError, "S is a list: pass an array"),
        ((g, -np.ones(3)), {"strength": 1}, ValueError, "S has the entry -1: expected a diagonal"),
        ((g * np.inf, S), {"strength": 1}, gp.NotFiniteError, "g contains NaN or infinity"),
        ((g, S * np.nan), {"strength": 1}, gp.NotFiniteError, "S contains NaN or infinity"),
        ((g,), {"basis": np.ones((1, 3))}, ValueError, "basis has rows that are not orthonormal"),
        ((g,), {"basis": np.ones(3)}, ValueError, r"basis has shape \(3,\): expected a matrix"),
        ((g, S), {"strength": 1, "out": g[:1]}, ValueError, r"out has shape \(1, 3\) and dtype"),
    ],
)
def test_wrong_arguments(arguments, options, error, message):
    with pytest.raises(error, match=message):
        gp.preserve(*arguments, **options)


@pytest.mark.numpy_only
def test_the_operator_is_for_one_dtype_and_library():
    factor = gp.Preservation.soft(S, 1.0)
    with pytest.raises(TypeError, match=r"g has dtype float32 and the operator .* for float64"):
        factor.apply(g.astype(np.float32))
    strict = pytest.importorskip("array_api_strict")
    with pytest.raises(TypeError, match="is from numpy and g is from array_api_strict"):
        factor.apply(strict.asarray(g))
    narrow = gp.Preservation.soft(S, 1.0, dtype=np.dtype(np.float32))
    assert narrow.matrix.dtype == np.float32
    assert narrow.apply(g.astype(np.float32)).dtype == np.float32
    assert repr(narrow) == "Preservation(dense, shape=(3, 3), dtype=float32)"
