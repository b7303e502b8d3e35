"""Soft and hard preservation on every library: forms, arguments and errors."""

import math

import numpy as np
import pytest
from support import backends

import gradproj as gp

EPS = {np.float32: 1.2e-7, np.float64: 2.3e-16}


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
        backends.assert_alike(w, backend.array(g))
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
    backends.assert_alike(w, ours)
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
    backends.assert_alike(w, ours)
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
@pytest.mark.parametrize("strength", [1.0, 1e12])
def test_only_the_symmetric_part_of_S_counts(strength):
    lopsided = np.asarray([[2.0, 1.0], [0.0, 2.0]])
    expected = gp.preserve(g[:, :2], (lopsided + lopsided.T) / 2, strength=strength)
    assert np.allclose(gp.preserve(g[:, :2], lopsided, strength=strength), expected, rtol=1e-9)


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


@pytest.mark.numpy_only
def test_moments_of_another_dtype_or_library():
    """Moments in float64 serve gradients in float32; both must be of one library."""
    w = gp.preserve(g.astype(np.float32), S, strength=1.0)
    assert w.dtype == np.float32
    assert np.allclose(w, g / 2)
    strict = pytest.importorskip("array_api_strict")
    with pytest.raises(TypeError, match="g is from numpy and S is from array_api_strict: pass"):
        gp.preserve(g, strict.asarray(S), strength=1.0)
    with pytest.raises(TypeError, match="g is from numpy and basis is from array_api_strict: pass"):
        gp.preserve(g, basis=strict.asarray(S))


@pytest.mark.parametrize("strength", [1.0, 30.0, 3e5])
def test_float64_is_optimal_to_its_rounding_when_S_is_badly_scaled(strength):
    """An explicit inverse of I + λS had residuals of up to 10,000 rounding units here."""
    rng = np.random.default_rng(0)
    for _ in range(200):
        row = rng.standard_normal(5) * [1e-3, 1, 1, 1, 1]
        S, g = 100 * np.outer(row, row), rng.standard_normal((1, 5))
        w = gp.preserve(g, S, strength=strength)
        scale = np.linalg.norm(g) * (1 + strength * np.linalg.norm(S))
        assert np.linalg.norm(w + strength * (w @ S) - g) <= 20 * np.finfo(float).eps * scale
