"""Rounding of float32: where it must not matter, and where `precise=True` avoids it."""

import numpy as np
import pytest

import gradproj as gp

METHODS = [gp.Decomposed(), gp.Decomposed(rank=0), gp.GEM(), gp.AGEM()]
every_method = pytest.mark.parametrize("method", METHODS, ids=repr)


def off(w, expected, g):
    return np.linalg.norm(w - expected) / np.linalg.norm(g)


@every_method
@pytest.mark.parametrize("seed", range(5))
def test_the_three_steps_hold_where_old_gradients_are_nearly_equal(method, seed):
    rng = np.random.default_rng(seed)
    base = rng.standard_normal(20_000)
    G = (base + 1e-5 * rng.standard_normal((4, 20_000))).astype(np.float32)
    g = (rng.standard_normal(20_000) - base).astype(np.float32)
    expected = gp.project(g.astype(float), G.astype(float), method)
    w = gp.combine(g, G, method.solve(gp.measure(g, G)).coefficients)
    assert w.dtype == np.float32
    assert off(w, expected, g) < 1e-6
    # In half the time: nearly equal gradients count as equal, as in `project`.
    products = gp.measure(g, G, precise=False)
    w = gp.combine(g, G, method.solve(products).coefficients, precise=False)
    assert off(w, gp.project(g, G, method), g) < 1e-6


@pytest.mark.parametrize("method", [gp.Decomposed(rank=0), gp.AGEM()], ids=repr)
def test_precise_does_not_round_the_mean_first(method):
    rng = np.random.default_rng(0)
    G = rng.standard_normal((5, 5_000))
    G[4] = -G[:4].sum(0) + 0.5 * G[0]
    G = G.astype(np.float32)
    g = (rng.standard_normal(5_000) - 10 * G.mean(0)).astype(np.float32)
    expected = gp.project(g.astype(float), G.astype(float), method)
    assert off(gp.project(g, G, method, precise=True), expected.astype(np.float32), g) < 1e-8
    assert 1e-8 < off(gp.project(g, G, method), expected, g) < 1e-4


@every_method
@pytest.mark.parametrize(
    ("new", "old"), [(1.0, 1e-40), (1e30, 1e-11), (1e-3, 1e-42), (1e-30, 1e15), (1e-33, 1e12)]
)
@pytest.mark.parametrize("N", [20, 2_000])
def test_coefficients_beyond_float32_are_not_lost(method, new, old, N):
    rng = np.random.default_rng(1)
    G = (rng.standard_normal((2, N)) * old).astype(np.float32)
    g = (new * (rng.standard_normal(N) - G.mean(0, dtype=float) / old)).astype(np.float32)
    expected = gp.project(g.astype(float), G.astype(float), method)
    assert off(gp.project(g, G, method).astype(float), expected, g.astype(float)) < 1e-3
    w = gp.combine(g, G, method.solve(gp.measure(g, G)).coefficients, precise=False)
    assert off(w.astype(float), expected, g.astype(float)) < 1e-3


@pytest.mark.parametrize(("T", "N"), [(10, 10), (20, 20), (20, 10), (4, 1000)])
@pytest.mark.parametrize("method", [gp.Decomposed(), gp.GEM()], ids=repr)
def test_small_layers_are_solved_as_exactly_as_they_are_measured(method, T, N):
    # Beside a large one, whose products are of float32: each layer has its own tolerance.
    for seed in range(30):
        rng = np.random.default_rng(seed)
        shapes = [(T, 2000), (T, N), (T, 3000), (T, N)]
        old = [rng.standard_normal(shape).astype(np.float32) for shape in shapes]
        new = [rng.standard_normal(N).astype(np.float32) for _, N in shapes]
        found = gp.project_layers(new, old, method, full_output=True)
        wide = [x.astype(float) for x in new], [x.astype(float) for x in old]
        expected = gp.project_layers(*wide, method, full_output=True)
        for layer in (1, 3):
            assert off(found.update[layer], expected.update[layer], new[layer]) < 1e-6
        for layer in (0, 2):
            assert off(found.update[layer], expected.update[layer], new[layer]) < 1e-4
        np.testing.assert_array_equal(found.rank, expected.rank)
        np.testing.assert_allclose(found.multiplier, expected.multiplier, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("spread", [1e-7, 1e-5, 1e-4, 1e-3])
@pytest.mark.parametrize("T", [10, 25, 40])
def test_gem_holds_where_rounding_outweighs_the_curvature(T, spread, seed):
    # Old gradients that are dependent up to rounding: the matrix of products is not semidefinite.
    rng = np.random.default_rng(seed)
    few = np.abs(rng.standard_normal((3, 3000)))
    G = rng.uniform(0.5, 1.5, (T, 3)) @ few + spread * rng.standard_normal((T, 3000))
    g = rng.standard_normal(3000) - few[0]
    w = gp.project(g.astype(np.float32), G.astype(np.float32), gp.GEM()).astype(float)
    size = np.linalg.norm(g)
    assert np.linalg.norm(w) < 1.001 * size
    assert (G @ w / np.linalg.norm(G, axis=1)).min() > -1e-3 * size


@pytest.mark.parametrize("d", [1e-2, 3.2e-3, 3e-3, 1e-3, 1e-4, 1e-5])
@pytest.mark.parametrize("method", [gp.Decomposed(rank=0), gp.AGEM()], ids=repr)
def test_a_mean_that_nearly_cancels_is_followed_while_it_can_be_told(method, d):
    rng = np.random.default_rng(0)
    a, p, r = rng.standard_normal((3, 5000))
    G = np.stack([a, -a + 2 * d * p]).astype(np.float32)
    g = (-3 * p + r).astype(np.float32)
    expected = gp.project(g.astype(float), G.astype(float), method)
    assert off(gp.project(g, G, method), expected, g) < 2e-5


@pytest.mark.numpy_only
@pytest.mark.parametrize("call", [gp.project, gp.combine])
def test_precise_takes_no_more_memory_than_its_result(call):
    import tracemalloc

    T, N = 4, 1_000_000
    G = np.random.default_rng(0).standard_normal((T, N), dtype=np.float32)
    g, c = -G.mean(0), np.ones(T)
    arguments = (g, G, c) if call is gp.combine else (g, G)
    tracemalloc.start()
    call(*arguments, precise=True)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 * N * 1.5


@pytest.mark.parametrize("N", [3000, 40_000])
def test_a_sum_that_cancels_behind_columns_of_zeros(N):
    # As of units that are not active: all columns that are sampled are zero.
    rng = np.random.default_rng(5)
    a, b = rng.standard_normal((2, N))
    G = np.stack([a, b, -(a + b)]).astype(np.float32)
    g = rng.standard_normal(N).astype(np.float32)
    blank, short = G.copy(), G.copy()
    for start in range(0, N, 16_384):
        blank[:, start : start + 1100] = 0.0
        short[:, start] *= 1e-6  # one short column among those that are sampled
    for old in (blank, short):
        for new in (g, -g):
            assert np.array_equal(gp.project(new, old, gp.AGEM()), new)
