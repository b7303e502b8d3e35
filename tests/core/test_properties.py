"""Named properties of the methods, over the zoo and at random."""

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from support import zoo
from support.assertions import condition, rounding

import gradproj as gp

EXACT = gp.Decomposed()
EVERY_METHOD = [
    EXACT,
    gp.Decomposed(rank=2),
    gp.Decomposed(rank=2, relaxation="first"),
    gp.Decomposed(rank=2, relaxation="last"),
    gp.Decomposed(rank=0.8),
    gp.Decomposed(rank=0),
    gp.Decomposed(specific=False),
    gp.Decomposed(shared=False),
    gp.GEM(),
    gp.AGEM(),
]
every_method = pytest.mark.parametrize("method", EVERY_METHOD, ids=repr)
every_matrix = pytest.mark.parametrize("name", zoo.NAMED)


def close(a: np.ndarray, b: np.ndarray, size: float, tolerance: float = 1e-9) -> bool:
    return bool(np.linalg.norm(a - b) <= tolerance * size)


@every_method
@every_matrix
@pytest.mark.parametrize("factor", [1e-30, 3.0, 1e30])
def test_rescaling_the_old_tasks_changes_nothing(method, name, factor):
    G = zoo.NAMED[name]
    G = G / (np.abs(G).max() or 1.0)
    g = zoo.new_gradient(G)
    w = gp.project(g, G, method)
    tolerance = rounding(G, method) if isinstance(method, gp.Decomposed) else 1e-9
    assert close(gp.project(g, factor * G, method), w, np.linalg.norm(g), tolerance)


@every_method
@every_matrix
@pytest.mark.parametrize("factor", [1e-30, 1e30])
def test_the_update_scales_with_the_new_gradient(method, name, factor):
    G = zoo.NAMED[name]
    g = zoo.new_gradient(G)
    w = gp.project(g, G, method)
    assert close(gp.project(factor * g, G, method), factor * w, factor * np.linalg.norm(g))


@given(case=zoo.gradients(), seed=st.integers(0, 1000))
def test_permuting_the_old_tasks_changes_nothing(case, seed):
    g, G = case
    order = np.random.default_rng(seed).permutation(len(G))
    for method in (EXACT, gp.GEM(), gp.AGEM()):
        assume(not isinstance(method, gp.Decomposed) or condition(G, method) < 1e5)
        tolerance = rounding(G, EXACT) if method is EXACT else 1e-7
        a, b = gp.project(g, G, method), gp.project(g, G[order], method)
        assert close(a, b, np.linalg.norm(g), tolerance)


@given(case=zoo.gradients())
def test_gem_does_not_see_the_lengths_of_the_old_gradients(case):
    g, G = case
    lengths = np.logspace(-6, 6, len(G))[:, None]
    a, b = gp.project(g, G, gp.GEM()), gp.project(g, lengths * G, gp.GEM())
    assert close(a, b, np.linalg.norm(g), 1e-6)


@every_method
@every_matrix
def test_one_layer_is_the_whole(method, name):
    G = zoo.NAMED[name]
    g = zoo.new_gradient(G)
    assert np.array_equal(gp.project_layers([g], [G], method)[0], gp.project(g, G, method))


@every_method
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_layers_of_any_sizes_are_solved_on_their_own(method, dtype):
    rng = np.random.default_rng(1)
    sizes = [3, 40_000, 1, 10, 0, 200]
    G = [rng.standard_normal((7, n)).astype(dtype) for n in sizes]
    g = [rng.standard_normal(n).astype(dtype) for n in sizes]
    result = gp.project_layers(g, G, method, full_output=True)
    for layer, w in enumerate(result.update):
        alone = gp.project(g[layer], G[layer], method, full_output=True)
        assert np.allclose(w, alone.update, rtol=0, atol=1e-12 if dtype == np.float64 else 2e-5)
        assert result.rank[layer] == alone.rank
        assert result.corrected[layer] == alone.corrected
        assert np.allclose(result.coefficients[layer], alone.coefficients)


@given(case=zoo.gradients(max_tasks=1), strength=st.sampled_from([0.0, 0.5]))
def test_with_one_old_task_all_methods_agree(case, strength):
    g, G = case
    expected = gp.project(g, G, EXACT)
    for method in (gp.GEM(), gp.AGEM(), gp.SGEM()):
        assert close(gp.project(g, G, method), expected, np.linalg.norm(g))
    a, b = gp.project(g, G, gp.GEM(strength)), gp.project(g, G, gp.AGEM(strength))
    assert close(a, b, max(np.linalg.norm(g), np.linalg.norm(a)))


@given(case=zoo.gradients())
def test_rank_zero_is_agem(case):
    g, G = case
    for method in (gp.Decomposed(rank=0), gp.Decomposed(specific=False)):
        assert close(gp.project(g, G, method), gp.project(g, G, gp.AGEM()), np.linalg.norm(g))


@given(case=zoo.gradients(), relaxation=st.sampled_from(["pca", "first", "last"]))
def test_enough_rank_is_exact(case, relaxation):
    g, G = case
    assume(condition(G, EXACT) < 1e5)
    enough = gp.Decomposed(rank=max(len(G) - 1, 1), relaxation=relaxation)
    a = gp.project(g, G, enough)
    tolerance = 10 * max(rounding(G, EXACT), rounding(G, enough))
    assert close(a, gp.project(g, G), np.linalg.norm(g), tolerance)


@given(case=zoo.gradients(), extra=st.integers(0, 3))
def test_a_rank_beyond_the_tasks_is_no_rank_to_the_bit(case, extra):
    g, G = case
    generous = gp.Decomposed(rank=len(G) + extra)
    assert np.array_equal(gp.project(g, G, generous), gp.project(g, G))


@given(case=zoo.gradients())
def test_every_old_task_gets_the_same(case):
    g, G = case
    products = G @ gp.project(g, G)
    unit = np.linalg.norm(g) * np.linalg.norm(G, axis=1).max()
    assert np.ptp(products) <= 1e-9 * unit
    assert products.min() >= -1e-9 * unit


@every_matrix
def test_nothing_in_conflict_leaves_the_gradient_alone(name):
    G = zoo.NAMED[name]
    size = np.abs(G).max() or 1.0
    g = gp.project(zoo.new_gradient(G), G / size, gp.GEM()) + (G / size).sum(0)
    for method in (gp.GEM(), gp.AGEM(), gp.Decomposed(specific=False), gp.Decomposed(rank=0)):
        if (G @ g >= 0).all() and G.mean(0) @ g >= 0:
            assert np.array_equal(gp.project(g, G, method), g)


@every_method
@given(case=zoo.gradients())
def test_projecting_twice_is_projecting_once(method, case):
    g, G = case
    assume(not isinstance(method, gp.Decomposed) or condition(G, method) < 1e3)
    w = gp.project(g, G, method)
    if isinstance(method, gp.Decomposed):
        # A short basis and a short rest of ḡ multiply: 13 at a condition of 370.
        tolerance = 30 * rounding(G, method)
    else:
        sizes = np.linalg.svd(G, compute_uv=False)
        sizes = sizes[sizes > 1e-13 * sizes[0]]
        tolerance = max(1e-7, 200 * np.finfo(float).eps * (sizes[:1] / sizes[-1:]).sum() ** 2)
    assert close(gp.project(w, G, method), w, np.linalg.norm(g), tolerance)


@pytest.mark.parametrize("form", ["mean", "sum"])
@given(case=zoo.gradients(), strength=st.floats(0, 2))
def test_strength_adds_the_old_gradients(form, case, strength):
    g, G = case
    plain, strong = gp.Decomposed(rank=2), gp.Decomposed(rank=2, strength=strength, replay=form)
    # The old gradients may cancel, but not their rounding.
    size = np.linalg.norm(g) + strength * np.linalg.norm(G)
    added = strength * (G.sum(0) if form == "sum" else G.mean(0))
    assert close(gp.project(g, G, strong), gp.project(g, G, plain) + added, size)
    replay = gp.Decomposed(shared=False, specific=False, strength=strength, replay=form)
    assert close(gp.project(g, G, replay), g + added, size)


@pytest.mark.parametrize("kind", [np.uint8, np.int8, np.float16])
def test_strength_may_be_any_number_of_numpy(kind):
    G = np.full((200, 3), 0.5)
    for options in ({"rank": 0}, {"rank": 1}, {"shared": False, "specific": False}):
        for replay, expected in (("sum", 201.0), ("mean", 2.0)):
            method = gp.Decomposed(**options, strength=kind(2), replay=replay)
            assert np.allclose(gp.project(np.ones(3), G, method), expected)


@pytest.mark.parametrize("method", [*EVERY_METHOD, gp.SGEM()], ids=repr)
def test_no_old_task_leaves_the_gradient_alone(method):
    g = np.asarray([1.0, -2.0])
    w = gp.project(g, np.zeros((0, 2)), method)
    assert np.array_equal(w, g)
    assert w is not g
    result = gp.project_layers([g], [np.zeros((0, 2))], method, full_output=True)
    assert result.coefficients.shape == (1, 0)
    assert not result.corrected[0]


def test_equal_tasks_have_nothing_specific():
    result = gp.project(np.asarray([-1.0, 0.5]), np.full((5, 2), 1 / 3), full_output=True)
    assert result.rank == 0


@pytest.mark.parametrize("rank", [None, 1, 2, 0.8])
@pytest.mark.parametrize("T", [3, 4, 9])
def test_equal_tasks_have_nothing_specific_whatever_the_rank(T, rank):
    rng = np.random.default_rng(T)
    for _ in range(50):
        G = np.tile(rng.standard_normal(22), (T, 1))
        found = gp.project(rng.standard_normal(22), G, gp.Decomposed(rank=rank), full_output=True)
        assert found.rank == 0


@pytest.mark.parametrize("T", [3, 7, 10])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_equal_tasks_decompose_into_exact_zeros(T, dtype):
    row = np.random.default_rng(1).standard_normal(9).astype(dtype)
    _, specific = gp.decompose(np.tile(row, (T, 1)))
    assert not specific.any()


def test_a_used_up_layer_is_not_corrected():
    G = zoo.NAMED["ten-number layer under 12 tasks"]
    result = gp.project(zoo.new_gradient(G), G, full_output=True)
    assert result.rank == 9
    assert not result.corrected
    assert np.linalg.norm(result.update) <= np.linalg.norm(zoo.new_gradient(G))


def test_pca_never_takes_more_directions_than_there_are():
    G = zoo.NAMED["rank 2 of 6"]
    result = gp.project(zoo.new_gradient(G), G, gp.Decomposed(rank=5), full_output=True)
    assert result.rank == 2


def test_share_of_variance_takes_as_few_directions_as_hold_it():
    G = np.diag([10.0, 3.0, 1.0, 0.1])
    values = np.linalg.svd(G - G.mean(0), compute_uv=False) ** 2
    shares = np.cumsum(values) / values.sum()
    for k, share in enumerate(shares[:3], start=1):
        method = gp.Decomposed(rank=float(share) - 1e-6)
        assert gp.project(np.ones(4), G, method, full_output=True).rank == k


def test_diagnostics_reproduce_the_update():
    rng = np.random.default_rng(5)
    G = rng.standard_normal((4, 20))
    g = -G.mean(0) + 0.1 * rng.standard_normal(20)
    for method in (*EVERY_METHOD, gp.SGEM(seed=3)):
        result = gp.project(g, G, method, full_output=True)
        assert np.allclose(gp.combine(g, G, result.coefficients), result.update)
        if method.strength == 0 and getattr(method, "shared", True):
            assert result.corrected
            assert result.multiplier > 0


@every_method
@every_matrix
def test_three_steps_are_one(method, name):
    G = zoo.NAMED[name]
    g = zoo.new_gradient(G)
    w = gp.combine(g, G, method.solve(gp.measure(g, G)).coefficients)
    assert close(w, gp.project(g, G, method), np.linalg.norm(g))


@every_method
def test_measured_pieces_add_up(method):
    rng = np.random.default_rng(6)
    G, g = rng.standard_normal((5, 30)), rng.standard_normal(30)
    a, b = (gp.measure(g[cut], G[:, cut]) for cut in (slice(0, 7), slice(7, 30)))
    solution = method.solve(a + b)
    assert np.allclose(gp.combine(g, G, solution.coefficients), gp.project(g, G, method))
    assert (a + b).square == pytest.approx(g @ g)


@pytest.mark.parametrize("method", [gp.AGEM(), gp.Decomposed(rank=0)], ids=repr)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_sum_that_cancels_is_no_direction_whichever_task_comes_first(method, dtype):
    for seed in range(8, 16):
        rng = np.random.default_rng(seed)
        a, b, c = rng.standard_normal((3, 50)) * [[1.0], [1.3], [0.7]]
        G = np.stack([np.zeros(50), a, b, c, -(a + b + c)]).astype(dtype)
        g = rng.standard_normal(50).astype(dtype)
        for order in ([0, 1, 2, 3, 4], [1, 2, 3, 4, 0], [0, 1, 4, 2, 3]):
            for new in (g, -g):
                result = gp.project(new, G[order], method, full_output=True)
                assert not result.corrected
                assert np.array_equal(result.update, new)


@pytest.mark.parametrize("precise", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_sgem_draws_are_seeded_and_uniform(dtype, precise):
    G, g = -np.eye(4, dtype=dtype), np.ones(4, dtype)
    draws = [gp.SGEM(seed=s) for s in (1, 1)]

    def drawn(method):
        found = gp.project(g, G, method, full_output=True, precise=precise)
        return int(np.flatnonzero(found.coefficients)[0])

    picks = [[drawn(method) for method in draws] for _ in range(400)]
    assert all(a == b for a, b in picks)
    counts = np.bincount([a for a, _ in picks], minlength=4)
    assert np.abs(counts - 100).max() < 4 * np.sqrt(400 * 3 / 16)


@pytest.mark.parametrize("precise", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_sgem_is_agem_of_the_task_that_it_draws(dtype, precise):
    G, g = (np.eye(4, 5) - 1).astype(dtype), np.ones(5, dtype)
    for strength in (0.0, 0.5, 3.0):
        found = gp.project(g, G, gp.SGEM(strength, seed=1), full_output=True, precise=precise)
        k = int(np.flatnonzero(found.coefficients)[0])
        expected = gp.project(g, G[k : k + 1], gp.AGEM(strength), full_output=True)
        assert np.allclose(found.update, expected.update)
        assert found.multiplier == pytest.approx(max(1.0, strength))


def test_gem_tells_how_many_constraints_are_active():
    g = np.asarray([-1.0, -2.0, 3.0, 0.5])
    for strength in (0.0, 0.25):
        found = gp.project(g, np.eye(4), gp.GEM(strength), full_output=True)
        assert found.rank == 2
        assert found.corrected
        assert found.multiplier == 2.0
        assert found.coefficients.tolist() == [1.0, 2.0, strength, strength]
    free = gp.project(-g[:2], np.eye(2), gp.GEM(0.25), full_output=True)
    assert (free.rank, free.corrected, free.multiplier) == (0, False, 0.0)


def test_sgem_takes_up_its_draws_where_a_checkpoint_left_them():
    G, g = -np.eye(6), np.ones(6)
    method = gp.SGEM(seed=2)
    gp.project(g, G, method)
    state = method.state_dict()
    after = [gp.project(g, G, method) for _ in range(5)]
    resumed = gp.SGEM(seed=9)
    resumed.load_state_dict(state)
    assert all(np.array_equal(gp.project(g, G, resumed), w) for w in after)


def test_gem_leaves_a_projected_gradient_alone_though_two_tasks_are_equal():
    # Problems whose optimum is zero up to rounding, which general solvers have got wrong.
    rng = np.random.default_rng(5)
    for _ in range(1000):
        G = rng.standard_normal((rng.integers(2, 9), 8))
        G[rng.integers(len(G))] = G[rng.integers(len(G))]
        g = 1e-9 * rng.standard_normal(8)
        w = gp.project(g, G, gp.GEM())
        assert close(gp.project(w, G, gp.GEM()), w, np.linalg.norm(g), 1e-12)


def test_results_can_be_looked_for_in_lists():
    results = [gp.project(np.ones(2), np.ones((1, 2)), full_output=True) for _ in range(2)]
    solutions = [gp.Solution(np.zeros(2)) for _ in range(2)]
    assert results.index(results[1]) == solutions.index(solutions[1]) == 1
