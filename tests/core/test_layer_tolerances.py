"""Each layer of a batch is solved at its own tolerance, whatever the others are."""

import numpy as np
import pytest
from support.methods import every_method

import gradproj as gp


def uneven_layers():
    """A short layer beside a long one, both with old gradients that are nearly equal."""
    rng = np.random.default_rng(0)
    new, old = [], []
    for N, spread in ((30, 1e-3), (3000, 1e-4), (3000, 1.0), (1024, 1e-3), (1025, 1e-3)):
        base = rng.standard_normal(N)
        old.append((base + spread * rng.standard_normal((4, N))).astype(np.float32))
        new.append((rng.standard_normal(N) - base).astype(np.float32))
    return new, old


def test_each_layer_is_measured_at_its_own_tolerance():
    new, old = uneven_layers()
    found = gp.measure_layers(new, old).tolerance
    assert found.tolist() == [1e-13, 2e-5, 2e-5, 1e-13, 2e-5]
    alone = [
        float(gp.measure(g, G, precise=False).tolerance) for g, G in zip(new, old, strict=True)
    ]
    assert found.tolist() == alone
    assert gp.measure_layers(new, old, precise=True).tolerance.tolist() == [1e-13] * 5


@pytest.mark.parametrize("order", [[0, 1, 2, 3, 4], [1, 0, 4, 3, 2]])
@every_method
def test_each_layer_is_solved_at_its_own_tolerance(method, order):
    new, old = uneven_layers()
    found = gp.project_layers([new[k] for k in order], [old[k] for k in order], method)
    for k, w in zip(order, found, strict=True):
        # The order of sums may differ in the last bits. A wrong tolerance changes whole digits.
        alone = gp.project(new[k], old[k], method)
        assert np.abs(w - alone).max() <= 1e-6 * np.abs(alone).max()


def test_a_sum_takes_the_larger_tolerance_and_all_of_the_square():
    one, other = (gp.Products([[1.0]], [1.0], 2.0, tolerance) for tolerance in (1e-13, 2e-5))
    for total in (one + other, other + one):
        assert total.tolerance == 2e-5
        assert total.square == 4.0
    assert np.isnan((one + gp.Products([[1.0]], [1.0])).square)


@pytest.mark.parametrize("method", [gp.AGEM(), gp.Decomposed(rank=0)], ids=repr)
@pytest.mark.parametrize("N", [50, 3000])
def test_a_layer_that_cancels_does_not_depend_on_the_others(method, N):
    rng = np.random.default_rng(3)
    a, b = rng.standard_normal((2, N))
    old = [np.stack([a, b, -(a + b)]), np.stack([a, b, a + b]), np.stack([a, -a, 1e-4 * b])]
    old = [G.astype(np.float32) for G in old]
    for sign in (1.0, -1.0):
        new = [(sign * rng.standard_normal(N)).astype(np.float32) for _ in old]
        found = gp.project_layers(new, old, method)
        for g, G, w in zip(new, old, found, strict=True):
            assert np.array_equal(w, gp.project(g, G, method))
        assert np.array_equal(found[0], new[0])
