"""Hand-computed problems on both sides of each threshold."""

import numpy as np
import pytest
from support import zoo
from support.methods import METHODS

import gradproj as gp

# Where a length counts as zero --------------------------------------------------------------------


def opposite_but_for(d):
    """Return two old gradients (±1, d), whose mean has length d."""
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


# The second pass, and differences from the shortest gradient: the remaining error is relative to
# the short gradients, not to the long one.
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
