"""Updates: copies, the scale of the new gradient, rounding and overflow."""

import numpy as np
import pytest
from support import backends
from support.methods import METHODS

import gradproj as gp


class Scaled(gp.Method):
    """Half of the new gradient and all of the old ones."""

    def solve_layers(self, products):
        return gp.Solution(np.ones_like(products.h), scale=0.5)


@pytest.mark.parametrize("library", ["numpy", "torch", "strict", "cupy-standin"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_an_update_that_equals_the_gradient_is_a_copy(library, dtype):
    backend = backends.get(library)
    g, G = (backend.array(np.ones(shape, dtype)) for shape in (3, (2, 3)))
    updates = [gp.project(g, G, method) for method in METHODS]
    updates += [gp.project(g, G[:0, :]), gp.combine(g, G, [0.0, 0.0])]
    updates += gp.project_layers([g], [G])
    updates += gp.combine_layers([g], [G], gp.Solution(np.zeros((1, 2))))
    for w in updates:
        w[...] = 5.0
        assert backend.numpy(g).tolist() == [1.0, 1.0, 1.0]


@pytest.mark.parametrize("library", ["numpy", "torch", "strict", "cupy-standin-device1"])
@pytest.mark.parametrize("precise", [False, True])
@pytest.mark.parametrize("N", [4, 2000])
@pytest.mark.parametrize("T", [1, 2])
def test_a_method_may_scale_the_new_gradient(library, precise, N, T):
    backend = backends.get(library)
    for dtype in (np.float32, np.float64):
        g, G = (backend.array(np.full(shape, 2.0, dtype)) for shape in (N, (T, N)))
        solution = Scaled().solve(gp.measure(g, G))
        assert solution.scale == 0.5
        layers = Scaled().solve(gp.measure_layers([g], [G]))
        updates = [
            gp.project(g, G, Scaled(), precise=precise),
            *gp.project_layers([g], [G], Scaled(), precise=precise),
            gp.combine(g, G, solution.coefficients, scale=float(solution.scale), precise=precise),
            *gp.combine_layers([g], [G], layers, precise=precise),
        ]
        for w in updates:
            assert (backend.numpy(w) == 1.0 + 2.0 * T).all()
        halved = gp.combine(g, G, np.zeros(T), scale=0.5, precise=precise)
        assert (backend.numpy(halved) == 1.0).all()
        assert gp.project(g, G, Scaled(), full_output=True).scale == 0.5


def test_a_scale_that_is_not_finite():
    class Own(gp.Method):
        def solve_layers(self, products):
            return gp.Solution(np.zeros_like(products.h), scale=np.nan)

    with pytest.raises(ValueError, match="returned coefficients or a scale with NaN or infinity"):
        gp.project(np.ones(2), np.ones((1, 2)), Own())


@pytest.mark.numpy_only
@pytest.mark.parametrize("precise", [False, True])
def test_an_update_has_every_column(precise):
    N = 3 * 65_536 + 7
    g, G = (np.ones(shape, np.float32) for shape in (N, (3, N)))
    assert (gp.combine(g, G, [1.0, 2.0, 3.0], precise=precise) == 7.0).all()
    assert (gp.combine(g, G, [1.0, 2.0, 3.0], precise=precise, out=g) == 7.0).all()


def test_short_and_precise_updates_are_rounded_once():
    # The old gradients cancel but for the last digits that float64 keeps and float32 does not.
    g, G, c = np.asarray([1e-3]), np.asarray([[1.0], [1.0]]), np.asarray([1e5 + 1e-3, -1e5])
    for N, options in ((1, {"precise": True}), (2000, {"precise": True})):
        new, old = (np.repeat(x, N, axis=-1).astype(np.float32) for x in (g, G))
        assert np.allclose(gp.combine(new, old, c, **options), 2e-3, rtol=1e-6)
        solution = gp.Solution(c[None])
        assert np.allclose(gp.combine_layers([new], [old], solution, **options), 2e-3, rtol=1e-6)
    short = [x.astype(np.float32) for x in (g, G)]
    assert np.allclose(gp.combine_layers(short[:1], short[1:], gp.Solution(c[None])), 2e-3)

    class Own(gp.Method):
        def solve_layers(self, products):
            return gp.Solution(np.tile(c, (len(products.h), 1)))

    assert np.allclose(gp.project(*short, Own()), 2e-3)


LARGE = [(np.float32, 3e38), (np.float64, 1.5e308)]


@pytest.mark.parametrize(("dtype", "large"), LARGE)
@pytest.mark.parametrize(
    ("new", "old", "strength"), [(1.0, 1.0, 0.5), (0.3, 1.0, 1.0), (1, 0.3, 1)]
)
def test_an_update_that_overflows_is_an_error_in_every_step(dtype, large, new, old, strength):
    g = np.asarray([new * large, 1.0], dtype)
    G = np.asarray([[old * large, 1.0]], dtype)
    message = f"the result does not fit into {np.dtype(dtype)}: skip"
    method = gp.Decomposed(strength=strength)
    with pytest.raises(gp.NotFiniteError, match=message):
        gp.project(g, G, method)
    with pytest.raises(gp.NotFiniteError, match=message):
        gp.project_layers([np.ones(2, dtype), g], [np.ones((1, 2), dtype), G], method)
    with pytest.raises(gp.NotFiniteError, match=message):
        gp.combine(g, G, [strength])
    with pytest.raises(gp.NotFiniteError, match=message):
        gp.combine_layers([g], [G], gp.Solution([[strength]]))


@pytest.mark.parametrize(("dtype", "large"), LARGE)
def test_an_update_that_fits_is_returned_although_its_sum_overflows(dtype, large):
    g = np.asarray([large, large, large / 2], dtype)
    G = np.asarray([[0.0, 0.0, -large / 2]], dtype)
    expected = np.asarray([large, large, 0.0], dtype)
    assert np.array_equal(gp.project(g, G, gp.GEM()), expected)
    assert np.array_equal(gp.combine(g, G, [1.0]), expected)
    assert np.array_equal(gp.combine_layers([g], [G], gp.Solution([[1.0]]))[0], expected)
