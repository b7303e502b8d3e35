"""What float32 loses: where it must not matter, and where `precise` brings it back."""

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
    w = gp.combine(g, G, method.coefficients(*gp.measure(g, G)))
    assert w.dtype == np.float32
    assert off(w, expected, g) < 1e-6
    # Half the time, and said so: what is nearly equal counts as equal, as in `project`.
    C, h = gp.measure(g, G, precise=False)
    w = gp.combine(g, G, method.coefficients(C, h, tolerance=1e-6), precise=False)
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
@pytest.mark.parametrize(("large", "small"), [(1.0, 1e-40), (1e30, 1e-11), (1e-3, 1e-42)])
@pytest.mark.parametrize("N", [20, 2_000])
def test_coefficients_beyond_float32_do_not_overflow(method, large, small, N):
    rng = np.random.default_rng(1)
    G = (rng.standard_normal((2, N)) * small).astype(np.float32)
    g = (large * (rng.standard_normal(N) - G.mean(0, dtype=float) / small)).astype(np.float32)
    expected = gp.project(g.astype(float), G.astype(float), method)
    assert off(gp.project(g, G, method).astype(float), expected, g.astype(float)) < 1e-3
    C, h = gp.measure(g, G)
    w = gp.combine(g, G, method.coefficients(C, h), precise=False)
    assert off(w.astype(float), expected, g.astype(float)) < 1e-3
