"""Gradients at the ends of the range of float64 and float32."""

import numpy as np
import pytest
from support import zoo
from support.methods import every_method

import gradproj as gp

EXTREMES = [(200, 200), (-200, -200), (200, -100), (-200, 100), (0, 170), (0, -170), (0, -160)]


@every_method
@pytest.mark.parametrize(("new", "old"), EXTREMES)
def test_float64_gradients_whose_squares_do_not_fit_beside_a_usual_layer(method, new, old):
    rng = np.random.default_rng(6)
    G = rng.standard_normal((4, 20)) + rng.standard_normal(20)
    g = rng.standard_normal(20) - G.mean(0)
    expected = gp.project(g, G, method)
    scaled = g * 10.0**new, G * 10.0**old
    w = gp.project(*scaled, method)
    assert np.allclose(w / 10.0**new, expected, atol=1e-7)
    layers = gp.project_layers([g, scaled[0]], [G, scaled[1]], method)
    assert np.allclose(layers[0], expected, atol=1e-12)
    assert np.allclose(layers[1] / 10.0**new, expected, atol=1e-7)


@every_method
def test_float64_gradients_whose_squares_fit_but_not_their_sum(method):
    rng = np.random.default_rng(1)
    G = rng.standard_normal((12, 20)) + rng.standard_normal(20)
    g = rng.standard_normal(20) - G.mean(0)
    w = gp.project(1e153 * g, 1e153 * G, method)
    assert np.allclose(w / 1e153, gp.project(g, G, method), rtol=0, atol=1e-12)


def test_measure_is_exact_for_tiny_float32_gradients():
    g = zoo.lengthened(np.asarray([3e-30, 4e-30], np.float32))
    G = zoo.lengthened(np.asarray([[1e-20, 0.0], [0.0, 0.0]], np.float32))
    found = gp.measure(g, G, precise=False)
    assert found.square == pytest.approx(2.5e-59, rel=1e-6)
    assert found.h[0] == pytest.approx(3e-50, rel=1e-6)
    assert found.C[0, 0] == pytest.approx(1e-40, rel=1e-6)


def test_measure_is_exact_for_small_squares_of_float32():
    # 1e-42 is a subnormal number of float32, which keeps three digits of it.
    rng = np.random.default_rng(7)
    g, G = (1e-22 * rng.standard_normal(shape) for shape in (1, (2, 1)))
    g, G = (zoo.lengthened(x.astype(np.float32)) for x in (g, G))
    found = gp.measure(g, G, precise=False)
    wide = G.astype(float)
    assert np.allclose(found.C, wide @ wide.T, rtol=1e-6, atol=0)
    one = zoo.lengthened(np.asarray([[1.0], [0.0]], np.float32))
    one[1] = G[1]
    found = gp.measure(g, one, precise=False)
    assert found.C[1, 1] == pytest.approx(float(wide[1] @ wide[1]), rel=1e-6)


def test_measure_holds_near_the_largest_float32():
    g, G = (zoo.lengthened(np.full(shape, 1.2e19, np.float32)) for shape in (2, (2, 2)))
    found = gp.measure(g, -G, precise=False)
    assert np.allclose(found.C, 2.88e38, rtol=1e-6)
    assert found.tolerance == 1e-13  # formed in float64
    assert np.allclose(found.h, -2.88e38, rtol=1e-6)
