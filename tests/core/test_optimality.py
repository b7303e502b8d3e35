"""Every method solves its problem: KKT conditions, an independent solver, the explicit steps."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, note
from hypothesis import strategies as st
from support import backends, zoo
from support.assertions import (
    assert_kkt,
    assert_kkt_gem,
    by_least_squares,
    condition,
    explicit_basis,
    gem_by_least_squares,
    replayed,
    rounding,
    shared_gradient,
)

import gradproj as gp

TIGHT = 1e-9

strengths = st.sampled_from([0.0, 0.25, 0.5])
decomposed = st.builds(
    gp.Decomposed,
    rank=st.one_of(st.none(), st.integers(0, 6), st.sampled_from([0.5, 0.9, 0.99])),
    shared=st.booleans(),
    specific=st.booleans(),
    strength=strengths,
    replay=st.sampled_from(["mean", "sum"]),
) | st.builds(
    gp.Decomposed,
    rank=st.integers(1, 6),
    relaxation=st.sampled_from(["first", "last"]),
    strength=strengths,
)


def has_clear_cut(G: np.ndarray, method: gp.Decomposed, gap: float = 0.99) -> bool:
    """Whether the problem has one answer at working precision.

    The rank is not a matter of rounding, and the K leading directions are apart from the next.
    """
    if condition(G, method) > 1e5:
        return False
    if method.rank is None or method.relaxation != "pca" or not method.specific:
        return True
    values = np.linalg.svd(G - G.mean(0), compute_uv=False)
    values = values[values > 1e-6 * np.linalg.norm(G, axis=1).max()]
    k = len(explicit_basis(G, method))
    if isinstance(method.rank, float):
        share = np.cumsum(values**2) / max((values**2).sum(), 1e-300)
        if np.abs(share - method.rank).min(initial=1.0) < 1e-6:
            return False
    return k in (0, len(values)) or bool(values[k] < gap * values[k - 1])


@backends.every_backend
@given(case=zoo.gradients(), method=decomposed)
def test_decomposed_is_optimal(library, case, method):
    backend = backends.get(library)
    g, G = case
    assume(has_clear_cut(G, method))
    # The replay term is added after the solution and would drown it at these scales.
    assume(method.strength == 0 or np.abs(G).max() < 1e5 * np.abs(g).max())
    w = backend.numpy(gp.project(backend.array(g), backend.array(G), method))
    assert_kkt(w, g, G, method)


@backends.every_backend
@given(case=zoo.gradients(), strength=strengths)
def test_gem_is_optimal(library, case, strength):
    backend = backends.get(library)
    g, G = case
    assume(strength == 0 or np.abs(G).max() < 1e5 * np.abs(g).max())
    result = gp.project(backend.array(g), backend.array(G), gp.GEM(strength), full_output=True)
    assert_kkt_gem(backend.numpy(result.update), g, G, result.coefficients, strength, TIGHT)


@backends.every_backend
@given(case=zoo.gradients())
def test_agem_is_optimal(library, case):
    backend = backends.get(library)
    g, G = case
    w = backend.numpy(gp.project(backend.array(g), backend.array(G), gp.AGEM()))
    assert gp.kkt_residuals(w, g, G.mean(0), np.zeros((0, len(g)))).worst <= TIGHT


@backends.every_backend
@given(case=zoo.gradients(), seed=st.integers(0, 100))
def test_sgem_is_optimal_for_the_task_it_draws(library, case, seed):
    backend = backends.get(library)
    g, G = case
    result = gp.project(backend.array(g), backend.array(G), gp.SGEM(seed=seed), full_output=True)
    k = np.random.default_rng(seed).integers(len(G)) if len(G) > 1 else 0
    w = backend.numpy(result.update)
    assert gp.kkt_residuals(w, g, G[k], np.zeros((0, len(g)))).worst <= TIGHT
    assert np.count_nonzero(np.delete(result.coefficients, k)) == 0


@given(case=zoo.gradients())
def test_decomposed_agrees_with_an_independent_solver(case):
    g, G = case
    w = gp.project(g, G)
    assume(has_clear_cut(G, gp.Decomposed()))
    other = by_least_squares(g, G.mean(0), gp.decompose(G)[1])
    assert np.linalg.norm(w - other) <= rounding(G, gp.Decomposed()) * np.linalg.norm(g)


@given(case=zoo.gradients())
def test_gem_agrees_with_an_independent_solver(case):
    g, G = case
    w, other = gp.project(g, G, gp.GEM()), gem_by_least_squares(g, G)
    length = np.where((norm := np.linalg.norm(G, axis=1)) > 0, norm, 1.0)
    # Inner products cannot tell such gradients from dependent ones, and the answer depends on it.
    sizes = np.linalg.svd(G / length[:, None], compute_uv=False)
    assume(not ((sizes > 1e-13 * sizes[0]) & (sizes < 1e-6 * sizes[0])).any())
    # SciPy's solvers do not always find the optimum: then a constraint is violated.
    assume((G @ other / length).min() >= -1e-9 * np.linalg.norm(g))
    # Both solvers violate constraints by rounding, up to 1e-13 of the terms. The effect grows
    # with the multipliers, which are large for nearly opposite gradients, and with the condition.
    terms = float(gp.GEM().solve(gp.measure(g, G)).coefficients @ length)
    condition = 1 / sizes[sizes > 1e-13 * sizes[0]][-1] if sizes[0] else 0.0
    assert np.linalg.norm(w - other) <= 1e-7 * np.linalg.norm(g) + 1e-13 * terms * condition


@pytest.mark.parametrize("condition", [1e3, 1e4, 1e5])
def test_what_is_projected_out_is_gone_far_below_what_the_condition_allows(condition):
    # The second pass of the projection: one alone leaves three to six digits more behind.
    rng = np.random.default_rng(0)
    for _ in range(50):
        left = np.linalg.qr(rng.standard_normal((6, 6)))[0]
        right = np.linalg.qr(rng.standard_normal((40, 6)))[0].T
        G, g = left * np.geomspace(1, 1 / condition, 6) @ right, rng.standard_normal(40)
        left_over = (G - G.mean(0)) @ gp.project(g, G)
        assert np.abs(left_over).max() < 1e-15 * condition * np.linalg.norm(g)


@given(case=zoo.gradients(), method=decomposed)
def test_fast_road_equals_explicit_road(case, method):
    g, G = case
    assume(has_clear_cut(G, method))
    assume(method.strength == 0 or np.abs(G).max() < 1e5 * np.abs(g).max())
    shared = shared_gradient(G, method)
    explicit = gp.solve(g, shared, explicit_basis(G, method)) + replayed(G, method)
    size = max(np.linalg.norm(g), np.linalg.norm(explicit))
    assert np.linalg.norm(gp.project(g, G, method) - explicit) <= rounding(G, method) * size


@given(case=zoo.gradients())
def test_gram_schmidt_and_pca_span_the_same_space(case):
    _, G = case
    _, specific = gp.decompose(G)
    assume(has_clear_cut(G, gp.Decomposed(shared=False)))
    scale = float(np.linalg.norm(G, axis=1).max())
    one = gp.gram_schmidt(specific, tolerance=3e-7, scale=scale)
    other = explicit_basis(G, gp.Decomposed())
    assert one.shape == other.shape
    for B in (one, other):
        assert np.allclose(B @ B.T, np.eye(len(B)), atol=1e-13)
    assert np.allclose(one.T @ one, other.T @ other, atol=1e-7)


@pytest.mark.filterwarnings("error")
def test_gram_schmidt_is_orthonormal_even_with_a_tolerance_below_rounding():
    rng = np.random.default_rng(0)
    for _ in range(300):
        H = np.round(3 * np.outer(rng.standard_normal(5), rng.standard_normal(4)))
        for tolerance in (0.0, 1e-17):
            B = gp.gram_schmidt(H, tolerance=tolerance)
            assert np.allclose(B @ B.T, np.eye(len(B)), atol=1e-13)


@pytest.mark.parametrize(("length", "precise"), [("short", False), ("long", False), ("long", True)])
@backends.every_backend
@given(case=zoo.gradients(), rank=st.sampled_from([None, 0, 2]))
def test_float32_is_optimal_to_its_rounding(library, length, precise, case, rank):
    backend = backends.get(library)
    g, G = (x.astype(np.float32) for x in case)
    note(zoo.as_code(g=g, G=G))
    if length == "long":
        g, G = zoo.lengthened(g), zoo.lengthened(G)
    method = gp.Decomposed(rank=rank)
    problem = Float32Problem(g.astype(float), G.astype(float), method)
    assume(problem.has_one_answer())
    once = precise or length == "short"
    bound = problem.error_after_one_rounding() if once else problem.error_of_float32_products()
    w = backend.numpy(gp.project(backend.array(g), backend.array(G), method, precise=precise))
    assert w.dtype == np.float32
    residuals = gp.kkt_residuals(w.astype(float), problem.g, problem.shared, problem.B)
    assert residuals.worst <= bound, residuals


class Float32Problem:
    """A problem with float32 gradients, held in float64, and how accurate its answer can be."""

    def __init__(self, g: np.ndarray, G: np.ndarray, method: gp.Decomposed) -> None:
        self.g, self.G, self.method = g, G, method
        self.shared, self.B = G.mean(0), explicit_basis32(G, method.rank)
        self.row_lengths = np.linalg.norm(G, axis=1)
        self.longest = self.row_lengths.max()
        # The lengths that decide the answer: of the directions in the basis, and of P ḡ.
        self.sizes = np.linalg.svd(G - self.shared, compute_uv=False)
        rest = np.linalg.norm(self.shared - self.B.T @ (self.B @ self.shared))
        self.lengths = np.asarray([*self.sizes[: method.rank], rest])
        self.clear = self.lengths > 1e-2 * self.longest
        self.shortest = self.sizes[len(self.B) - 1] if len(self.B) else self.longest
        self.rest = rest if self.clear[-1] else self.longest
        if not self.clear[-1]:
            self.shared = np.zeros_like(self.shared)

    def has_one_answer(self) -> bool:
        """Whether each length is either clear in float32 products or zero up to rounding.

        A direction or P ḡ counts as zero below a relative square of 2e-5. P ḡ is a combination of
        old gradients whose coefficients grow as the basis gets shorter, so their product counts.
        """
        known = (self.clear | (self.lengths < 1e-7 * self.longest)).all()
        apart = self.shortest * self.rest > 1e-2 * self.longest**2
        cut = self.method.rank is None or has_clear_cut(self.G, self.method, gap=0.9)
        return bool(known and apart and cut)

    def error_of_float32_products(self) -> float:
        """Bound the residuals of an update w = g + Gᵀc from float32 products.

        The products have errors |Eᵢⱼ| <= ε lᵢ lⱼ and |eᵢ| <= ε lᵢ ‖g‖, with the row lengths l. The
        method satisfies D (h + C c) = 0 and pᵀ (h + C c) = 0 with these products, where B = D G and
        P ḡ = pᵀG. So what is left of the constraints is, with r = ‖g‖ + Σ |cᵢ| lᵢ:

            ‖B w‖            = ‖D (e + E c)‖       <= ε r ‖l‖ / σ, σ the shortest direction
            ⟨P ḡ, w⟩ / ‖P ḡ‖ = pᵀ (e + E c) / ‖P ḡ‖ <= ε r Σ |pᵢ| lᵢ / ‖P ḡ‖

        Both c and p grow as 1 / (σ ‖P ḡ‖): the product of the two lengths decides, not the shorter
        one. Rounding adds ε r to the update. Principal components also turn, by ε ‖l‖² over the
        gap between the squares of the last one that is kept and the next, and P ḡ with them.

        A hill climb for the worst case reached 0.55 of this bound with ε = eps of float32.
        """
        epsilon = 2 * np.finfo(np.float32).eps
        c = gp.project(self.g, self.G, self.method, full_output=True).coefficients
        only_basis = replace(self.method, shared=False)
        p = gp.project(self.G.mean(0), self.G, only_basis, full_output=True).coefficients
        p = (p + 1 / len(self.G)) * self.clear[-1]
        reach = 1 + np.abs(c) @ self.row_lengths / (np.linalg.norm(self.g) or 1.0)
        whole = np.linalg.norm(self.row_lengths)
        left = max(2.0, whole / self.shortest, np.abs(p) @ self.row_lengths / self.rest)
        turn = 0.0
        if self.method.rank and len(self.B) < np.count_nonzero(self.sizes > 1e-7 * self.longest):
            gap = self.shortest**2 - self.sizes[len(self.B)] ** 2
            turn = whole**2 / gap * (1 + self.longest / self.rest)
        return float(epsilon * (reach * left + turn))

    def error_after_one_rounding(self) -> float:
        """Bound the residuals of an update that was computed in float64 and rounded once.

        Old gradients that were dependent before they were rounded to float32 have further, tiny
        directions τ. They count as zero. Which basis of length σ is left depends on how the rows
        are scaled when they are cut off: it may turn by about τ / σ, and P ḡ with it.
        """
        cut_off = self.lengths[~self.clear].max(initial=0.0)
        turn = 4 * len(self.G) ** 0.5 * cut_off / self.shortest * self.longest / self.rest
        return float(2 * np.finfo(np.float32).eps + turn)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_principal_components_that_hold_every_gradient_leave_nothing_to_correct(dtype):
    # Gradients on a line and a zero one: two components hold all of them, and of ḡ only the zero
    # gradient is left. Its coefficient is 1, and those of the others are rounding errors.
    rng = np.random.default_rng(0)
    for _ in range(200):
        line = rng.standard_normal((2, 18)) * [[1.0], [0.2]]
        G = np.vstack([np.stack([np.ones(4), rng.standard_normal(4)], 1) @ line, np.zeros(18)])
        g, G = rng.standard_normal(18).astype(dtype), G.astype(dtype)
        found = gp.project(g, G, gp.Decomposed(rank=2), full_output=True)
        assert found.rank == 2
        assert not found.corrected
        assert np.abs(G @ found.update).max() < 300 * np.finfo(dtype).eps * np.linalg.norm(g)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_zero_task_beside_dependent_ones_leaves_nothing_to_correct(dtype):
    # Every old gradient is then task-specific, and of ḡ only rounding is left outside of the basis.
    rng = np.random.default_rng(0)
    for _ in range(200):
        G = rng.standard_normal((8, 6)) @ rng.standard_normal((6, 40)) * 1e-31
        G = np.vstack([G, np.zeros(40)]).astype(dtype)
        g = (1e30 * rng.standard_normal(40)).astype(dtype)
        found = gp.project(g, G, full_output=True, precise=True)
        assert found.rank == 6
        assert not found.corrected


def explicit_basis32(G: np.ndarray, rank: int | None) -> np.ndarray:
    """The basis of directions that are more than float32's rounding of the gradients."""
    specific = G - G.mean(0)
    largest = np.linalg.norm(specific, 2)
    if rank == 0 or largest <= 1e-5 * np.linalg.norm(G, axis=1).max():
        return np.zeros((0, G.shape[1]))
    longest = np.linalg.norm(G, axis=1).max()
    return gp.principal_components(specific, rank, tolerance=float(1e-5 * longest / largest))


@pytest.mark.parametrize("name", zoo.NAMED)
@pytest.mark.parametrize("seed", range(3))
def test_named_matrices(name, seed):
    G = zoo.NAMED[name]
    g = zoo.new_gradient(G, seed)
    assert_kkt(gp.project(g, G), g, G, gp.Decomposed())
    result = gp.project(g, G, gp.GEM(), full_output=True)
    assert_kkt_gem(result.update, g, G, result.coefficients, 0.0, TIGHT)
    assert np.linalg.norm(gp.project(g, G)) <= np.linalg.norm(g) * (1 + 1e-12)


@pytest.mark.parametrize(("T", "N"), [(20, 10), (60, 30), (100, 50), (100, 90)])
def test_gem_is_optimal_in_layers_with_fewer_numbers_than_tasks(T, N):
    rng = np.random.default_rng(T)
    for _ in range(5):
        G, g = rng.standard_normal((T, N)), rng.standard_normal(N)
        result = gp.project(g, G, gp.GEM(), full_output=True)
        assert_kkt_gem(result.update, g, G, result.coefficients, 0.0, TIGHT)


@pytest.mark.parametrize("seed", range(20))
def test_gem_is_optimal_where_three_directions_are_told_apart_and_a_fourth_is_not(seed):
    rng = np.random.default_rng(seed)
    left, _ = np.linalg.qr(rng.standard_normal((4, 4)))
    right, _ = np.linalg.qr(rng.standard_normal((17, 4)))
    G = left * np.asarray([9.0, 0.8, 2e-4, 4e-9]) @ right.T
    g = rng.standard_normal(17)
    w = gp.project(g, G, gp.GEM())
    # The rounding of the products is eps · (9 / 2e-4)² = 4e-7 of the third direction's.
    assert np.linalg.norm(gp.project(w, G, gp.GEM()) - w) < 1e-6 * np.linalg.norm(g)


@pytest.mark.parametrize("tolerance", [0.0, 1e-13])
@pytest.mark.parametrize("T", [2, 7, 40])
def test_gem_takes_equal_tasks_as_one_at_any_tolerance(tolerance, T):
    products = gp.Products(np.full((T, T), 4.0), np.full(T, -2.0), tolerance=tolerance)
    assert gp.GEM().solve(products).coefficients.sum() == pytest.approx(0.5, rel=1e-9)


def test_the_judge_sees_what_a_basis_leaves_of_the_shared_gradient():
    # ḡ is nearly in the span of B. Its short part outside of B must still decide.
    shared, B, g = np.asarray([1.0, 1e-8, 0.0]), np.asarray([[1.0, 0.0, 0.0]]), np.eye(3)[1]
    assert gp.kkt_residuals(6 * g, g, shared, B).worst > 0.1
    assert gp.kkt_residuals(-g, -g, shared, B).worst > 0.1
    for new in (g, -g):
        assert gp.kkt_residuals(gp.solve(new, shared, B), new, shared, B).worst < TIGHT


def test_the_judge_sees_each_condition_alone():
    x, y, z = np.eye(3)
    shared, B = y, x[None]
    cases = {
        "stationarity": (y, y + z, 0.5**0.5),  # moved where no constraint pulls
        "equality": (x + y, x + y, 0.5**0.5),  # B w is not zero
        "inequality": (-y, -y, 1.0),  # the shared gradient is hurt
        "dual": (0 * y, y, 1.0),  # pushed back from a constraint that allows more
        "slackness": (2 * y, y, 0.5),  # pulled by a constraint that does not bind
    }
    for name, (w, g, size) in cases.items():
        found = gp.kkt_residuals(w, g, shared, B)
        for other in cases:
            wanted = size if other == name else 0.0
            assert getattr(found, other) == pytest.approx(wanted, abs=1e-15), (name, other)
        assert found.worst == pytest.approx(size)


@pytest.mark.parametrize(("dtype", "large"), [(np.float32, 1e38), (np.float64, 1e308)])
@pytest.mark.filterwarnings("error")
def test_the_explicit_road_takes_vectors_whose_length_overflows(dtype, large):
    g, shared = np.full(1000, -large, dtype), np.full(1000, large, dtype)
    B = np.zeros((0, 1000), dtype)
    assert np.abs(gp.solve(g, shared, B)).max() <= 1e-5 * large
    assert gp.kkt_residuals(gp.solve(g, shared, B), g, shared, B).worst < 1e-5
    assert gp.kkt_residuals(g, g, shared, B).inequality > 0.9
