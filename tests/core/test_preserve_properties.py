"""Properties of soft preservation, on every library: optimality, limits and invariances."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import backends

import gradproj as gp

EPS = {np.float32: 1.2e-7, np.float64: 2.3e-16}
strengths = st.sampled_from([0.0, 0.1, 1.0, 30.0])
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
    backends.assert_alike(w, ours)
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


def preserved(library, g, S, strength):
    """The update as a NumPy array in float64."""
    backend = backends.get(library)
    w = gp.preserve(backend.array(g), backend.array(S), strength=strength)
    return backend.numpy(w).astype(np.float64)


@backends.every_backend
@given(case=problems(), dtype=dtypes)
def test_a_larger_strength_preserves_more(library, case, dtype):
    g, S = (x.astype(dtype) for x in case)
    top = np.linalg.norm(S, 2)
    changes, lengths = [], []
    for strength in (0.0, 0.1, 1.0, 30.0, math.inf):
        w = preserved(library, g, S, strength)
        changes.append(np.trace(w @ S @ w.T))
        lengths.append(np.linalg.norm(w))
    rounding = 100 * EPS[dtype] * np.linalg.norm(g)
    assert (np.diff(lengths) <= rounding).all()
    assert (np.diff(changes) <= rounding * np.linalg.norm(g) * top).all()


@backends.every_backend
@given(case=problems(), strength=strengths, factor=st.sampled_from([1e-3, 8.0, 1e4]))
def test_a_factor_of_S_is_a_factor_of_the_strength(library, case, strength, factor):
    g, S = case
    found = preserved(library, g, factor * S, strength)
    expected = preserved(library, g, S, factor * strength)
    assert np.allclose(found, expected, rtol=0, atol=1e-9)
    longer = preserved(library, factor * g, S, strength)
    assert np.allclose(longer, factor * preserved(library, g, S, strength), rtol=1e-9)


@backends.every_backend
@given(case=problems(), seed=st.integers(0, 99), strength=st.sampled_from([1.0, 30.0, math.inf]))
def test_a_rotation_of_the_inputs_rotates_the_update(library, case, seed, strength):
    g, S = case
    n = len(S)
    Q = np.linalg.qr(np.random.default_rng(seed).standard_normal((n, n)))[0]
    found = preserved(library, g @ Q, Q.T @ S @ Q, strength)
    assert np.allclose(found, preserved(library, g, S, strength) @ Q, rtol=0, atol=1e-9)


@backends.every_backend
@given(case=problems(), strength=strengths)
def test_float32_is_close_to_float64(library, case, strength):
    g, S = case
    narrow = preserved(library, g.astype(np.float32), S.astype(np.float32), strength)
    # The relative error of I + λS, rounded to float32, is that of its inverse.
    condition = 1 + strength * np.linalg.norm(S, 2)
    tolerance = min(20 * EPS[np.float32] * condition, 1.0) * np.linalg.norm(g)
    assert np.allclose(narrow, preserved(library, g, S, strength), rtol=0, atol=tolerance)


@backends.every_backend
@given(
    cases=st.lists(st.integers(0, 500), min_size=1, max_size=3),
    strength=st.sampled_from([0.1, 30.0, math.inf]),
)
def test_leading_axes_are_separate_problems(library, cases, strength):
    """Of different rank and size, so that one of them must not set the tolerances of all."""
    g, S = [], []
    for seed in cases:
        rng = np.random.default_rng(seed)
        a = 10.0 ** rng.integers(-4, 4) * rng.standard_normal((rng.integers(0, 6), 5))
        g.append(rng.standard_normal((2, 5)))
        S.append(a.T @ a)
    together = preserved(library, np.stack(g), np.stack(S), strength)
    for k, alone in enumerate(zip(g, S, strict=True)):
        assert np.allclose(together[k], preserved(library, *alone, strength), rtol=0, atol=1e-7)


@backends.every_backend
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("negative", [-1e-7, -1e-2])
@pytest.mark.parametrize("strength", [0.0, 1.0, 1e3, math.inf])
def test_negative_eigenvalues(library, dtype, negative, strength):
    """Those of rounding count as zero, also those of float32 in a matrix of float64."""
    Q = np.linalg.qr(np.random.default_rng(1).standard_normal((4, 4)))[0]
    S = ((Q * [negative, 0.0, 1.0, 2.0]) @ Q.T).astype(dtype)
    g = np.ones((1, 4), dtype)
    if negative < -1e-3:
        with pytest.raises(ValueError, match=r"S has the eigenvalue -0\.01 and the largest is 2: "):
            preserved(library, g, S, strength)
        return
    kept = [1, 1, 0, 0] if strength == math.inf else 1 / (1 + strength * np.asarray([0, 0, 1, 2]))
    expected = g @ (Q * kept) @ Q.T
    assert np.allclose(preserved(library, g, S, strength), expected, rtol=0, atol=2e-3)


@backends.every_backend
@pytest.mark.parametrize("shape", [(0, 3), (2, 1), (0, 1), (2, 0)])
@pytest.mark.parametrize("strength", [1.0, math.inf])
def test_small_shapes(library, shape, strength):
    n = shape[1]
    w = preserved(library, np.ones(shape), 3.0 * np.ones((n, n)), strength)
    assert w.shape == shape
    if n == 1:
        assert np.allclose(w, 0.0 if strength == math.inf else 0.25)
