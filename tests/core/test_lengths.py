"""Old gradients of very different lengths, and numbers at the ends of their dtype's range."""

import numpy as np
import pytest

import gradproj as gp

METHODS = [
    gp.Decomposed(),
    gp.Decomposed(shared=False),
    gp.Decomposed(rank=0),
    gp.Decomposed(rank=1),
    gp.Decomposed(rank=2),
    gp.Decomposed(rank=0.9),
    gp.Decomposed(rank=2, relaxation="first"),
    gp.Decomposed(rank=2, relaxation="last"),
    gp.GEM(),
    gp.AGEM(),
]
every_method = pytest.mark.parametrize("method", METHODS, ids=repr)
LENGTHS = {
    "one long": lambda T, ratio: np.r_[ratio, np.ones(T - 1)],
    "one short": lambda T, ratio: np.r_[1 / ratio, np.ones(T - 1)],
    "graded": lambda T, ratio: np.geomspace(1, ratio, T),
}


def off(w, expected, g):
    return np.linalg.norm(w - expected) / np.linalg.norm(g)


def problem(T, ratio, kind, seed, n=2000):
    """Old gradients with a shared part and given lengths, and a new one against each of them."""
    rng = np.random.default_rng(seed)
    rows = rng.standard_normal((T, n)) + (seed % 2) * rng.standard_normal(n)
    g = rng.standard_normal(n) - 20 * (rows / np.linalg.norm(rows, axis=1)[:, None]).sum(0)
    return g, rows * LENGTHS[kind](T, ratio)[:, None]


@every_method
@pytest.mark.parametrize("kind", LENGTHS)
@pytest.mark.parametrize("ratio", [1e2, 1e3, 1e4])
@pytest.mark.parametrize("T", [2, 5, 60])
def test_float32_gives_the_results_of_float64(method, kind, ratio, T):
    for seed in (0, 1):
        g, G = (x.astype(np.float32) for x in problem(T, ratio, kind, seed))
        found = gp.project(g, G, method, full_output=True)
        wide = gp.project(g.astype(float), G.astype(float), method, full_output=True)
        assert off(found.update, wide.update, g) < 1e-5
        assert found.rank == wide.rank
        assert found.corrected == wide.corrected


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("ratio", "close"), [(1e3, 1e-5), (1e6, 1e-5), (1e9, 1e-5), (1e12, 1e-3)])
def test_a_short_old_task_is_protected_beside_a_long_one(ratio, close, dtype):
    a, b, z = np.random.default_rng(0).standard_normal((3, 2000))
    G, g = np.stack([ratio * a, b]).astype(dtype), (-b + 0.3 * z).astype(dtype)
    for method in (gp.Decomposed(), gp.GEM()):
        found = gp.project(g, G, method, full_output=True)
        w = found.update.astype(float)
        assert found.corrected
        assert w @ b > -1e-5 * np.linalg.norm(w) * np.linalg.norm(b)
        assert w @ a > -close * np.linalg.norm(w) * np.linalg.norm(a)


@pytest.mark.parametrize("ratio", [1e4, 1e8])
def test_gem_does_not_depend_on_the_lengths_of_the_old_gradients(ratio):
    rng = np.random.default_rng(4)
    for _ in range(20):
        G, g = rng.standard_normal((5, 30)), rng.standard_normal(30)
        lengths = rng.permutation(np.geomspace(1 / ratio, ratio, 5))[:, None]
        expected = gp.project(g, G, gp.GEM())
        assert off(gp.project(g, lengths * G, gp.GEM()), expected, g) < 1e-9


@pytest.mark.parametrize("method", [gp.AGEM(), gp.Decomposed(rank=0)], ids=repr)
@pytest.mark.parametrize("n", [50, 5000])
@pytest.mark.parametrize("d", [1e-4, 1e-7, 1e-10, 1e-13])
def test_a_mean_is_followed_as_long_as_float64_knows_it(method, n, d):
    rng = np.random.default_rng(0)
    a, p, r = rng.standard_normal((3, n))
    G = np.stack([a, -a + 2 * d * p])
    mean = (G[0] + G[1]) / 2  # exact: the two numbers nearly cancel
    g = r - 3 * p
    found = gp.project(g, G, method, full_output=True)
    assert found.corrected
    assert off(found.update, g - (mean @ g) / (mean @ mean) * mean, g) < 1e-9


@every_method
@pytest.mark.parametrize(
    ("new", "old"),
    [
        (1.0, 1e-170),
        (1.0, 1e-250),
        (1.0, 1e160),
        (1.0, 1e250),
        (1e-150, 1e-300),
        (1e170, 1e300),
        (1e-200, 1.0),
        (1e200, 1.0),
    ],
)
def test_float64_gradients_whose_squares_do_not_fit(method, new, old):
    g, G = problem(4, 10.0, "graded", 1, n=40)
    # Without strength the scale of G does not matter, and w scales with g.
    expected = gp.project(g, G, method)
    w = gp.project(g * new, G * old, method) / new
    assert off(w, expected, g) < 1e-9


def test_strength_is_right_where_squares_do_not_fit():
    g, G = problem(4, 10.0, "graded", 1, n=40)
    for method in (gp.Decomposed(strength=0.5), gp.GEM(0.5), gp.AGEM(0.5)):
        expected = gp.project(g, G, method)
        for factor in (1e-200, 1e200):
            w = gp.project(g * factor, G * factor, method)
            assert off(w / factor, expected, g) < 1e-9


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("n", [2, 2000])
@pytest.mark.filterwarnings("error")
def test_an_update_that_overflows_is_an_error(dtype, n):
    large = float(np.finfo(dtype).max) * 0.9
    g, G = np.full(n, large, dtype), np.zeros((2, n), dtype)
    G[:, 0] = large
    with pytest.raises(gp.NotFiniteError, match=f"the result does not fit into {np.dtype(dtype)}"):
        gp.project(g, G, gp.Decomposed(shared=False, specific=False, strength=1.0))
    with pytest.raises(gp.NotFiniteError, match="the result does not fit into"):
        gp.combine(g, G, [1.0, 1.0])
    # Large, but not too large: the sum of its numbers overflows, the update does not.
    assert np.array_equal(gp.project(g, np.zeros_like(G)), g)
    assert np.array_equal(gp.combine(g, G, [0.0, 0.0], scale=0.5), g / 2)
