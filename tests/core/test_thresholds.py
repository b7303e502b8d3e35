"""Hand-computed problems on both sides of each threshold, and updates at the ends of the range."""

import numpy as np
import pytest
from support import backends, zoo

import gradproj as gp

METHODS = [gp.Decomposed(), gp.Decomposed(rank=1), gp.Decomposed(rank=0), gp.GEM(), gp.AGEM()]
every_method = pytest.mark.parametrize("method", METHODS, ids=repr)


class Scaled(gp.Method):
    """Half of the new gradient and all of the old ones."""

    def solve_layers(self, products):
        return gp.Solution(np.ones_like(products.h), scale=0.5)


class Weighted(gp.Method):
    """One combination of the old gradients, with weights of the test's own."""

    def __init__(self, *weights):
        self.weights = np.asarray(weights)

    def solve_layers(self, products):
        return gp.AGEM().solve_layers(products)

    def reduce(self, T):
        del T
        return gp.Reduction(self.weights, gp.AGEM())


# Where a length counts as zero --------------------------------------------------------------------


def opposite_but_for(d):
    """Two old gradients whose mean, and what is free of it, has length d: (±1, d)."""
    return np.asarray([0.0, -1.0]), np.asarray([[1.0, d], [-1.0, d]])


# ‖Pḡ‖² = d² counts as zero up to half of the tolerance: 1e-13 for float64, 2e-5 for float32.
@pytest.mark.parametrize(
    ("dtype", "d", "corrected"),
    [("f8", 1e-6, True), ("f8", 5e-8, False), ("f4", 8e-3, True), ("f4", 1e-3, False)],
)
def test_decomposed_corrects_along_a_shared_gradient_that_can_be_told(dtype, d, corrected):
    g, G = (zoo.lengthened(x.astype(dtype)) for x in opposite_but_for(d))
    for method in (gp.Decomposed(), gp.Decomposed(rank=1), gp.Decomposed(rank=0.5)):
        found = gp.project(g, G, method, full_output=True)
        assert found.corrected == corrected
        assert found.rank == 1
        assert found.update[1] == pytest.approx(0.0 if corrected else -1.0, abs=1e-2)


@pytest.mark.parametrize(("d", "corrected"), [(1e-6, True), (5e-8, False)])
def test_agem_corrects_along_a_mean_that_the_products_can_tell(d, corrected):
    g, G = opposite_but_for(d)
    found = gp.AGEM().solve(gp.Products(G @ G.T, G @ g))
    assert found.corrected == corrected


# The squared length of the difference, 4 d², counts as zero up to 2 (1 + d²) times the tolerance.
@pytest.mark.parametrize(
    ("dtype", "d", "rank"), [("f8", 1e-6, 1), ("f8", 2e-8, 0), ("f4", 2e-2, 1), ("f4", 5e-4, 0)]
)
@pytest.mark.parametrize("method", METHODS[:2], ids=repr)
def test_decomposed_projects_out_directions_that_can_be_told(method, dtype, d, rank):
    g, G = np.asarray([0.5, 1.0]), np.asarray([[1.0, d], [1.0, -d], [1.0, -d]])
    if isinstance(method.rank, int):
        G = np.vstack([G, [[1.0, d]]])  # so that one component is fewer than all
    g, G = (zoo.lengthened(x.astype(dtype)) for x in (g, G))
    found = gp.project(g, G, method, full_output=True)
    assert found.rank == rank
    assert found.update[1] == pytest.approx(0.0 if rank else 1.0, abs=1e-3)


# One difference, of squared length 4 d²: it counts as zero up to 2 (1 + d²) times the tolerance.
@pytest.mark.parametrize(("d", "rank"), [(3e-7, 1), (1.5e-7, 0)])
def test_the_threshold_of_a_direction_does_not_depend_on_the_decomposition(d, rank):
    g, G = np.asarray([0.5, 1.0]), np.asarray([[1.0, d], [1.0, -d]])
    assert gp.project(g, G, full_output=True).rank == rank


@pytest.mark.parametrize("T", [6, 12])
def test_directions_that_are_short_beside_the_shared_gradient_are_projected_out(T):
    rng = np.random.default_rng(0)
    for _ in range(30):
        left = np.linalg.qr(rng.standard_normal((T, T)))[0]
        right = np.linalg.qr(rng.standard_normal((40, T)))[0].T
        G = left * np.geomspace(1, 1e-5, T) @ right + rng.standard_normal(40)
        g = rng.standard_normal(40)
        found = gp.project(g, G, full_output=True)
        assert found.rank == T - 1
        assert np.abs((G - G.mean(0)) @ found.update).max() < 1e-8 * np.linalg.norm(g)


# The second pass, and differences from the shortest gradient: what is left is relative to the short
# gradients, not to the long one.
@pytest.mark.parametrize(
    ("ratio", "relaxation", "left_over"),
    [(1e6, "last", 1e-5), (1e6, "pca", 1e-8), (1e8, "pca", 1e-6)],
)
@pytest.mark.parametrize("T", [3, 6])
def test_short_old_tasks_get_the_same_beside_a_long_one(T, ratio, relaxation, left_over):
    rng = np.random.default_rng(0)
    for _ in range(30):
        G, g = rng.standard_normal((T, 40)), rng.standard_normal(40)
        G[-1] *= ratio
        found = gp.project(g, G, gp.Decomposed(T - 1, relaxation), full_output=True)
        assert found.rank == T - 1
        assert np.ptp(G[:-1] @ found.update) < left_over


def test_exact_products_have_directions_without_rounding():
    # A tolerance of 0 leaves the rounding of the decomposition itself.
    rng = np.random.default_rng(0)
    for _ in range(20):
        G = rng.standard_normal((6, 2)) @ rng.standard_normal((2, 20))
        products = gp.Products(G @ G.T, G @ rng.standard_normal(20), tolerance=0.0)
        for rank in (None, 4, 0.999999):
            assert gp.Decomposed(rank).solve(products).rank == 2


def test_equal_gradients_of_unlike_lengths_in_many_directions():
    # Twenty gradients in nine directions: the others are rounding, whatever the lengths.
    rng = np.random.default_rng(0)
    for _ in range(20):
        G = rng.standard_normal((20, 9)) @ rng.standard_normal((9, 300))
        G *= 10.0 ** rng.uniform(-3, 3, (20, 1))
        found = gp.project(rng.standard_normal(300), G, full_output=True)
        assert found.rank == 9


# Free parts of ḡ of 450, 45 and 4.5 rounding units: up to 100 units count as zero.
@pytest.mark.parametrize(("d", "corrected"), [(1e-13, True), (1e-14, False), (1e-15, False)])
def test_the_explicit_solution_corrects_along_what_is_more_than_rounding(d, corrected):
    B, shared, g = np.asarray([[1.0, 0.0]]), np.asarray([1.0, d]), np.asarray([0.0, -1.0])
    assert gp.solve(g, shared, B).tolist() == [0.0, 0.0 if corrected else -1.0]
    assert gp.kkt_residuals(g, g, shared, B).inequality == (1.0 if corrected else 0.0)


def test_the_explicit_solution_has_no_part_along_the_basis():
    # ḡ is nearly in the span of B. One pass would leave 1e-8 of the correction there.
    rng = np.random.default_rng(0)
    for _ in range(20):
        B = gp.gram_schmidt(rng.standard_normal((5, 40)))
        u = rng.standard_normal(40)
        u -= B.T @ (B @ u)
        u -= B.T @ (B @ u)
        shared = rng.standard_normal(5) @ B + 1e-8 * u
        w = gp.solve(-u, shared, B)
        assert np.linalg.norm(B @ w) < 1e-14 * np.linalg.norm(u)
        assert np.linalg.norm(w) < 1e-6 * np.linalg.norm(u)


def test_a_negative_multiplier_does_not_hide_the_slackness():
    x, y = np.eye(2)
    found = gp.kkt_residuals(y, 2 * y, y, x[None])
    assert found.slackness == pytest.approx(0.25)
    assert found.dual == pytest.approx(0.5)


@pytest.mark.parametrize("off", [1e-6, 1e-3])
def test_a_basis_is_checked_to_half_of_the_digits(off):
    B = np.asarray([[1.0, off], [0.0, 1.0]])
    with pytest.raises(ValueError, match="B has rows that are not orthonormal"):
        gp.solve(np.ones(2), np.ones(2), B)
    assert gp.solve(np.ones(2), np.ones(2), np.asarray([[1.0, 1e-9]])).shape == (2,)


def test_a_basis_of_16_bits_is_checked_to_half_of_its_own_digits():
    # 1/√3 in float16 has an error of 2e-4, so that B Bᵀ differs from 1 by 7e-4.
    g, B = np.ones(3, np.float16), np.full((1, 3), 3**-0.5, np.float16)
    assert np.allclose(gp.solve(g, 0 * g, B), 0.0, atol=2e-3)


@pytest.mark.parametrize("size", [1e-200, 1e200])
def test_a_basis_of_rows_whose_squares_do_not_fit(size):
    for basis in (gp.gram_schmidt, gp.principal_components):
        assert np.allclose(np.abs(basis(size * np.eye(2, 3))), np.eye(2, 3))
    shared, specific = gp.decompose(size * np.asarray([[1.0, 2.0], [3.0, 2.0]]))
    assert np.allclose(shared / size, [2.0, 2.0])
    assert np.allclose(specific / size, [[-1.0, 0.0], [1.0, 0.0]])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_decompose_keeps_what_is_more_than_rounding(dtype):
    # Up to T = 2 rounding units of the longest row count as zero.
    d = 16 * float(np.finfo(dtype).eps)
    shared, specific = gp.decompose(np.asarray([[1.0, d], [1.0, -d]], dtype))
    assert shared.tolist() == [1.0, 0.0]
    assert specific.tolist() == [[0.0, d], [0.0, -d]]
    assert not gp.decompose(np.asarray([[1.0, d / 10], [1.0, -d / 10]], dtype))[1].any()


@pytest.mark.parametrize("basis", [gp.gram_schmidt, gp.principal_components])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_basis_has_the_directions_that_are_more_than_rounding(basis, dtype):
    # Up to 10 T = 20 rounding units of the longest row count as zero.
    basis = getattr(gp, basis.__name__)
    epsilon = float(np.finfo(dtype).eps)
    for units, rank in ((200, 2), (3, 1)):
        H = np.asarray([[1.0, 0.0, 0.0], [0.0, units * epsilon, 0.0]], dtype)
        assert basis(H).shape == (rank, 3)
    assert basis(np.zeros((3, 4), dtype)).shape == (0, 4)


def test_gram_schmidt_measures_rows_by_the_scale_of_the_caller():
    H = np.asarray([[1e-3, 0.0], [0.0, 1e-6]])
    assert gp.gram_schmidt(H, tolerance=1e-5).shape == (2, 2)
    assert gp.gram_schmidt(H, tolerance=1e-5, scale=1.0).shape == (1, 2)
    assert gp.gram_schmidt(H, tolerance=1e-5, scale=1e3).shape == (0, 2)


def test_a_share_that_is_held_exactly_takes_no_further_direction():
    assert gp.principal_components(np.eye(4), 0.5).shape == (2, 4)
    assert gp.principal_components(np.diag([2.0, 1.0]), 0.7).shape == (1, 2)  # 4 of 5, not 2 of 3
    # The task-specific parts are four orthogonal vectors of the same length.
    G = np.vstack([np.eye(4), -np.eye(4)])
    found = gp.project(np.ones(4), G, gp.Decomposed(rank=0.5), full_output=True)
    assert found.rank == 2


def test_no_conflict_is_no_correction_at_any_strength():
    g, G = np.asarray([0.0, 1.0]), np.asarray([[2.0, 0.0], [1.0, 0.0]])
    for method in (gp.AGEM(0.5), gp.SGEM(0.5), gp.GEM(0.5), gp.Decomposed(), gp.Decomposed(rank=0)):
        found = gp.project(g, G, method, full_output=True)
        assert not found.corrected
        assert found.update.tolist() == [0.0, 1.0]
        separate = method.solve(gp.measure(g, G))
        assert not separate.corrected
        assert separate.coefficients.tolist() == [0.0, 0.0]


# What every layer of a batch is solved with ------------------------------------------------------


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
        assert np.array_equal(w, gp.project(new[k], old[k], method))


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


# Sums of the old gradients -----------------------------------------------------------------------


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


# Updates -----------------------------------------------------------------------------------------


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


# The ends of the range of float64 and float32 ----------------------------------------------------

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


# GEM's quadratic program -------------------------------------------------------------------------


@pytest.mark.parametrize(("d", "active"), [(1e-9, 2), (0.0, 1)])
def test_gem_adds_a_constraint_that_the_others_violate_by_more_than_rounding(d, active):
    # The second constraint holds for g, and is violated by d after the first is met.
    G, g = np.asarray([[1.0, 0.0, 0.0], [-1.0, -1.0, 0.0]]), np.asarray([-1.0, d, 1.0])
    for seed in range(30):
        turn = np.linalg.qr(np.random.default_rng(seed).standard_normal((3, 3)))[0]
        found = gp.project(g @ turn, G @ turn, gp.GEM(), full_output=True)
        assert found.rank == active
        assert np.allclose(found.update @ turn.T, [0.0, 0.0, 1.0], rtol=0, atol=1e-14)


def test_gem_takes_a_short_step_where_the_products_do_not_know_better():
    # Opposite gradients (±1, 0) and g = (-0.5, 0), with errors below the tolerance. Taken as they
    # are, the products ask for 50 of each gradient, which cancel; 0.5 of the first is exact.
    products = gp.Products(
        [[1.0, -1.0 + 1e-7], [-1.0 + 1e-7, 1.0]], [-0.5, 0.5 - 1e-5], tolerance=2e-5
    )
    found = gp.GEM().solve(products).coefficients
    assert found[0] - found[1] == pytest.approx(0.5, abs=1e-3)
    assert found.max() < 10


@pytest.mark.parametrize("tolerance", [1e-13, 2e-5])
@pytest.mark.parametrize("T", [3, 5, 12])
def test_gem_never_follows_an_old_task_uphill(T, tolerance):
    # Nearly dependent gradients, where refining the solution may overshoot.
    for seed in range(200):
        rng = np.random.default_rng(seed)
        few = rng.standard_normal((2, 30))
        G = rng.uniform(0.5, 1.5, (T, 2)) @ few + 1e-5 * rng.standard_normal((T, 30))
        h = G @ (rng.standard_normal(30) - few[0])
        found = gp.GEM().solve(gp.Products(G @ G.T, h, tolerance=tolerance))
        assert found.coefficients.min() >= 0
