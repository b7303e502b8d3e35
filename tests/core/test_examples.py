"""The user-defined methods in examples/, against computations on explicit vectors."""

import doctest
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import nnls
from support import backends, zoo
from support.assertions import gem_by_least_squares
from support.examples import load

import gradproj as gp

more = load("more_methods")


def surgery():
    pytest.importorskip("torch", reason="torch, which the experiments need, is not installed")
    return load("own_method").Surgery()


def mega(new_loss=0.5, old_loss=2.0):
    method = more.MEGA()
    method.new_loss, method.old_loss = new_loss, old_loss
    return method


METHODS = {
    "PCGrad": surgery,
    "GradVac": lambda: more.GradVac(0.5),
    "MGDA": more.MGDA,
    "CAGrad": more.CAGrad,
    "MEGA": mega,
}
every_method = pytest.mark.parametrize("make", METHODS.values(), ids=METHODS)
named = pytest.mark.parametrize("name", zoo.NAMED)


def norm(x):
    return float(np.linalg.norm(x))


def conflicting(T=4, N=30, seed=0):
    rng = np.random.default_rng(seed)
    G = rng.standard_normal((T, N))
    return rng.standard_normal(N) - G.sum(0), G


# Every method -----------------------------------------------------------------------------------


@every_method
def test_layers_are_solved_one_by_one(make):
    layers = [conflicting(N=N, seed=N) for N in (3, 30, 2000)]
    g, G = ([layer[k] for layer in layers] for k in (0, 1))
    found = gp.project_layers(g, G, make(), full_output=True)
    for k in range(3):
        alone = gp.project(g[k], G[k], make(), full_output=True)
        np.testing.assert_allclose(found.update[k], alone.update, atol=1e-12 * norm(g[k]))
        np.testing.assert_allclose(found.coefficients[k], alone.coefficients, atol=1e-12)
        assert found.scale[k] == pytest.approx(alone.scale, abs=1e-12)


@every_method
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@backends.every_backend
def test_libraries(make, dtype, library):
    backend = backends.get(library)
    g, G = (x.astype(dtype) for x in conflicting(N=2000))
    expected = gp.project(g.astype(np.float64), G.astype(np.float64), make())
    w = gp.project(backend.array(g), backend.array(G), make())
    assert w.dtype == backend.array(g).dtype
    tolerance = 1e-3 if dtype == np.float32 else 1e-10
    np.testing.assert_allclose(backend.numpy(w), expected, atol=tolerance * np.abs(g).max())


@every_method
def test_without_old_tasks_nothing_changes(make):
    g, G = conflicting()
    np.testing.assert_array_equal(gp.project(g, G[:0], make()), g)


@every_method
@named
def test_hard_gradients_give_finite_updates(make, name):
    G = zoo.NAMED[name]
    assert np.isfinite(gp.project(zoo.new_gradient(G), G, make())).all()


@pytest.mark.parametrize("make", [more.GradVac, more.MGDA, more.CAGrad])
def test_products_without_the_norm_of_g_are_refused(make):
    with pytest.raises(ValueError, match=r"products\.square is NaN.* pass gp\.measure\(g, G\)"):
        make().solve(gp.Products([[1.0]], [1.0]))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: more.GradVac(1.0), "beta=1.0 is invalid"),
        (lambda: more.CAGrad(-1), "rho=-1 is inv"),
    ],
)
def test_options_out_of_range_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.numpy_only
def test_the_examples_in_the_docstring():
    result = doctest.testmod(more)
    assert result.attempted > 0
    assert result.failed == 0


# PCGrad -----------------------------------------------------------------------------------------


def loop_of_pcgrad(g, G):
    w = g.copy()
    for row in G:
        if row @ w < 0 < row @ row:
            w = w - (row @ w) / (row @ row) * row
    return w


@given(zoo.gradients())
def test_pcgrad_is_the_explicit_loop(problem):
    g, G = problem
    w = gp.project(g, G, surgery())
    assert norm(w - loop_of_pcgrad(g, G)) <= 1e-9 * norm(g)
    if len(G):
        assert G[-1] @ w >= -1e-9 * norm(G[-1]) * norm(g)


# GradVac ----------------------------------------------------------------------------------------


def loop_of_gradvac(g, G, targets, beta):
    """Solve each task's problem by bisection: the similarity grows with the added length."""
    w, targets = g.copy(), targets.copy()
    for i, row in enumerate(G):
        if norm(row) == 0 or norm(w) <= 1e-6 * norm(g):
            continue
        unit = row / norm(row)
        before = unit @ w / norm(w)
        if before < targets[i]:
            low, high = 0.0, 100 * norm(w)
            for _ in range(100):
                a = (low + high) / 2
                reached = unit @ (w + a * unit) >= targets[i] * norm(w + a * unit)
                low, high = (low, a) if reached else (a, high)
            w = w + high * unit
        targets[i] += beta * (before - targets[i])
    return w, targets


@given(zoo.gradients(max_tasks=4), st.floats(0, 0.9), st.floats(0, 0.9))
def test_gradvac_is_the_explicit_loop(problem, target, beta):
    g, G = problem
    method = more.GradVac(beta)
    method.targets = np.full((1, len(G)), target)
    w = gp.project(g, G, method)
    expected, targets = loop_of_gradvac(g, G, np.full(len(G), target), beta)
    assert norm(w - expected) <= 1e-5 * norm(g)
    if norm(w) > 1e-3 * norm(g):  # else the last similarities are only rounding
        np.testing.assert_allclose(method.targets[0], targets, atol=1e-4)


@pytest.mark.parametrize("target", [-0.2, 0.0, 0.5, 0.9])
def test_gradvac_reaches_its_target(target):
    g, G = conflicting(T=1)
    method = more.GradVac()
    method.targets = np.full((1, 1), target)
    w = gp.project(g, G, method)
    assert G[0] @ w / norm(G[0]) / norm(w) == pytest.approx(target)


def test_gradvac_without_averaging_is_pcgrad():
    g, G = conflicting()
    np.testing.assert_allclose(gp.project(g, G, more.GradVac(0)), loop_of_pcgrad(g, G))


def test_gradvac_averages_the_similarities():
    method = more.GradVac(0.25)
    g, G = conflicting(T=1)
    g = g + 10 * G[0]  # similar: nothing is corrected
    cosine = G[0] @ g / norm(G[0]) / norm(g)
    for step in (1, 2, 3):
        np.testing.assert_array_equal(gp.project(g, G, method), g)
        assert method.targets[0, 0] == pytest.approx((1 - 0.75**step) * cosine)


def test_gradvac_stays_finite_when_all_gradients_are_equal():
    method, g = more.GradVac(0.5), np.arange(1.0, 5.0)
    for _ in range(100):
        assert np.isfinite(gp.project(g, g[None], method)).all()
    assert norm(gp.project(np.ones(4), g[None], method)) < 100


def test_gradvac_resumes_from_its_state():
    steps = [conflicting(T=T, seed=T) for T in (1, 2, 2, 3, 4)]  # tasks are added
    whole, first = more.GradVac(0.3), more.GradVac(0.3)
    expected = [gp.project(*step, whole) for step in steps]
    for step in steps[:3]:
        gp.project(*step, first)
    second = more.GradVac(0.3)
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    for step, known in zip(steps[3:], expected[3:], strict=True):
        np.testing.assert_array_equal(gp.project(*step, second), known)
    fresh = more.GradVac()
    fresh.load_state_dict(more.GradVac().state_dict())
    assert fresh.targets.size == 0
    with pytest.raises(ValueError, match=r"state has \['generator'\]: expected the state_dict"):
        second.load_state_dict({"generator": {}})


def test_gradvac_refuses_other_layers_and_fewer_tasks():
    method = more.GradVac()
    g, G = conflicting()
    gp.project(g, G, method)
    with pytest.raises(ValueError, match="targets for 1 layers and 4 tasks, and got 2 layers and"):
        gp.project_layers([g, g], [G, G], method)
    with pytest.raises(ValueError, match=r"and got 1 layers and 3 tasks: use one GradVac per"):
        gp.project(g, G[:3], method)


# MGDA -------------------------------------------------------------------------------------------


def assert_shortest_of_hull(g, G, result):
    """Check the optimality conditions on explicit vectors: gᵢ · w >= ‖w‖² for each gradient."""
    alpha = np.append(result.scale, result.coefficients)
    assert alpha.min() >= 0
    assert alpha.sum() == pytest.approx(1)
    rows = np.vstack([g, G])
    lengths = np.linalg.norm(rows, axis=1)
    w = alpha @ rows
    np.testing.assert_allclose(result.update, w, atol=1e-12 * (alpha @ lengths), rtol=0)
    if lengths.min() == 0:
        assert norm(w) <= 1e-12 * lengths.max()
        return
    # Rounding in w is relative to its longest term.
    noise = 1e-6 * lengths.min() + 1e-13 * (alpha * lengths).max()
    assert (rows @ w - w @ w >= -noise * lengths).all()


@given(zoo.gradients())
def test_mgda_is_the_shortest_of_the_hull(problem):
    assert_shortest_of_hull(*problem, gp.project(*problem, more.MGDA(), full_output=True))


@named
def test_mgda_on_hard_gradients(name):
    G = zoo.NAMED[name]
    g = zoo.new_gradient(G)
    assert_shortest_of_hull(g, G, gp.project(g, G, more.MGDA(), full_output=True))


def test_mgda_of_two_is_the_foot_of_the_perpendicular():
    result = gp.project(
        np.asarray([2.0, 0.0]), np.asarray([[0.0, 1.0]]), more.MGDA(), full_output=True
    )
    np.testing.assert_allclose(result.update, [0.4, 0.8])
    assert result.scale == pytest.approx(0.2)
    np.testing.assert_allclose(result.coefficients, [0.8])


@given(zoo.gradients())
def test_mgda_of_the_mean_is_mgda_of_the_rows(problem):
    _, G = problem
    unit = np.abs(G).max() or 1.0
    w = gp.project(G.mean(0), G, more.MGDA())
    x, _ = nnls(np.vstack([G.T / unit, np.ones(len(G))]), np.append(np.zeros(G.shape[1]), 1.0))
    shortest = x / x.sum() @ G
    assert norm(w - shortest) <= 1e-5 * unit


# CAGrad -----------------------------------------------------------------------------------------


@given(zoo.gradients(max_tasks=5), st.sampled_from([0.0, 0.1, 0.5, 0.9]))
def test_cagrad_closes_the_duality_gap(problem, rho):
    """Compare with the paper's dual: gₐ · g + ρ ‖g‖ ‖gₐ‖ is an upper bound for any convex a."""
    g, G = problem
    result = gp.project(g, G, more.CAGrad(rho), full_output=True)
    w, radius = result.update, rho * norm(g)
    assert norm(w - g) <= radius * (1 + 1e-6) + 1e-12 * norm(g)
    unit = np.linalg.norm(G, axis=1).max() or 1.0
    hull, _ = nnls(np.vstack([G.T / unit, np.ones(len(G))]), np.append(np.zeros(len(g)), 1.0))
    candidates = [*np.eye(len(G)), hull / hull.sum()]
    if result.coefficients.any():
        candidates.append(result.coefficients / result.coefficients.sum())
    bound = min(a @ G @ g + radius * norm(a @ G) for a in candidates)
    assert (G @ w).min() >= bound - 1e-5 * unit * norm(g)


# MEGA -------------------------------------------------------------------------------------------


def test_mega_weights_by_the_losses():
    g, G = conflicting()
    np.testing.assert_allclose(gp.project(g, G, mega(0.5, 2.0)), g + 4 * G.mean(0))
    result = gp.project(g, G, mega(0.0005, 2.0), full_output=True)
    np.testing.assert_allclose(result.update, G.mean(0))
    np.testing.assert_allclose(result.coefficients, 0.25)
    assert result.scale == 0


def test_mega_is_the_same_with_all_products():
    g, G = conflicting()
    solution = mega().solve(gp.measure(g, G))
    w = gp.combine(g, G, solution.coefficients, scale=solution.scale)
    np.testing.assert_allclose(w, gp.project(g, G, mega()))


# The symmetric use of a built-in method ---------------------------------------------------------


@given(zoo.gradients())
def test_gem_of_the_mean_conflicts_with_no_task(problem):
    _, G = problem
    mean = G.mean(0)
    w = gp.project(mean, G, gp.GEM())
    size = np.linalg.norm(G, axis=1).max()
    assert (G @ w >= -1e-7 * np.linalg.norm(G, axis=1) * norm(mean)).all()
    assert norm(w - gem_by_least_squares(mean, G)) <= 1e-6 * size
