"""Sums of the old gradients that cancel, and the weights of a sum."""

import numpy as np
import pytest

import gradproj as gp


class Weighted(gp.Method):
    """One combination of the old gradients, with weights of the test's own."""

    def __init__(self, *weights):
        self.weights = np.asarray(weights)

    def solve_layers(self, products):
        return gp.AGEM().solve_layers(products)

    def reduce(self, T):
        del T
        return gp.Reduction(self.weights, gp.AGEM())


@pytest.mark.parametrize("N", [60, 20_000, 40_000])
def test_a_sum_that_cancels_anywhere_in_a_long_layer(N):
    # Only the first columns of every 16,384 are sampled for the lengths of the old gradients.
    rng = np.random.default_rng(4)
    for method in (gp.AGEM(), Weighted(1.0, 1.0, 1.0), Weighted(1.0, -1.0, 1.0)):
        a, b = rng.standard_normal((2, N))
        weights = method.reduce(3).weights
        G = np.stack([a, b, -(weights[0] * a + weights[1] * b) / weights[2]]).astype(np.float32)
        for seed in range(4):
            g = np.random.default_rng(seed).standard_normal(N).astype(np.float32)
            found = gp.project(g, G, method, full_output=True)
            assert not found.corrected
            assert np.array_equal(found.update, g)


@pytest.mark.parametrize("where", [slice(0, 16_384), slice(32_768, 40_000)], ids=["first", "last"])
@pytest.mark.parametrize(("rest", "corrected"), [(1e-5, True), (1e-8, False)])
def test_a_sum_that_cancels_in_one_block(where, rest, corrected):
    # Beside the long part that cancels, a rest of 1e-8 is less than the rounding of float32.
    rng = np.random.default_rng(5)
    G = np.zeros((2, 40_000))
    G[0] = rest * rng.standard_normal(40_000)
    G[:, where] = rng.standard_normal(where.stop - where.start) * [[1.0], [-1.0]]
    g = (rng.standard_normal(40_000) - G.sum(0) / rest).astype(np.float32)
    found = gp.project(g, G.astype(np.float32), gp.AGEM(), full_output=True)
    assert found.corrected == corrected
    expected = g.astype(float)
    if corrected:
        mean = G.astype(np.float32).astype(float).mean(0)
        expected = expected - (mean @ expected) / (mean @ mean) * mean
    assert np.allclose(found.update, expected, atol=1e-6)


@pytest.mark.parametrize("N", [3000, 40_000])
def test_a_sum_that_loses_two_digits_is_formed_in_float64(N):
    rng = np.random.default_rng(6)
    a, b, p, r = rng.standard_normal((4, N))
    G = np.stack([a, b, 0.03 * p - (a + b)]).astype(np.float32)  # the mean has length 0.01
    g = (r - 10 * p).astype(np.float32)
    expected = gp.project(g.astype(float), G.astype(float), gp.AGEM())
    w = gp.project(g, G, gp.AGEM())
    assert np.linalg.norm(w - expected) < 3e-7 * np.linalg.norm(g)


@pytest.mark.parametrize("N", [50, 3000])
def test_a_difference_of_one_rounding_unit_is_zero(N):
    rng = np.random.default_rng(7)
    a, g = rng.standard_normal((2, N)).astype(np.float32)
    G = np.stack([a, np.nextafter(a, np.float32(9))])
    for new in (g, -g):
        assert np.array_equal(gp.project(new, G, Weighted(1.0, -1.0)), new)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("units", [20, 0.5])
def test_a_sum_of_a_few_rounding_units_is_zero(units, dtype):
    # Up to 4 rounding units of the lengths of the terms count as zero.
    epsilon = float(np.finfo(dtype).eps)
    G = np.asarray([[1.0, 0.0], [-1.0, 2 * units * epsilon]], dtype)
    g = np.asarray([0.5, -1.0], dtype)
    for N in (0, 2000):
        new, old = (np.concatenate([x, np.zeros((*x.shape[:-1], N), dtype)], -1) for x in (g, G))
        for method in (gp.AGEM(), gp.Decomposed(rank=0)):
            w = gp.project(new, old, method)
            assert w[:2].tolist() == [0.5, 0.0 if units > 4 else -1.0]


def test_the_weight_of_a_single_task_counts():
    g, G = np.asarray([1.0, 0.0]), np.asarray([[-1.0, 1.0], [5.0, 5.0]])
    found = gp.project(g, G, Weighted(2.0, 0.0), full_output=True)
    assert found.multiplier == 0.25  # half of that for a weight of 1
    assert found.coefficients.tolist() == [0.5, 0.0]
    assert found.update.tolist() == [0.5, 0.5]


@pytest.mark.parametrize("N", [50, 3000])
def test_weights_of_both_signs_do_not_shorten_the_terms(N):
    # Both differ by two rounding units, which is also the difference of their lengths.
    for seed in range(10):
        a, g = np.random.default_rng(seed).standard_normal((2, N)).astype(np.float32)
        G = np.stack([a, np.nextafter(np.nextafter(a, 2 * a), 2 * a)])
        for new in (g, -g):
            assert np.array_equal(gp.project(new, G, Weighted(1.0, -1.0)), new)


def test_a_sum_of_exactly_four_rounding_units_is_zero():
    found = gp.AGEM().reduce(2).cancels([16.0, 16.1], [1.0, 1.0], 1.0)
    assert found.tolist() == [True, False]


def test_a_method_does_not_see_a_sum_that_is_zero():
    seen = []

    class Watch(gp.Method):
        def solve_layers(self, products):
            seen.append((products.C.tolist(), products.h.tolist()))
            return gp.Solution(np.zeros_like(products.h))

        def reduce(self, T):
            return gp.Reduction(np.full(T, 1 / T), self)

    a, b, g = np.random.default_rng(0).standard_normal((3, 3000))
    G = np.stack([a, b, -(a + b)]).astype(np.float32)
    gp.project(g.astype(np.float32), G, Watch())
    assert seen == [([[[0.0]]], [[0.0]])]


@pytest.mark.parametrize("weights", [[np.inf, 1.0], [np.nan, 1.0], [0.0, 0.0], [[1.0]]])
def test_weights_that_are_no_combination(weights):
    with pytest.raises(ValueError, match="expected one finite number per old task"):
        gp.Reduction(weights, gp.AGEM())
    assert gp.Reduction([0.0, 1.0], gp.AGEM()).tasks == [1]
