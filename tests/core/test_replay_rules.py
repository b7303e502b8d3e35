"""Rules for adding the replayed gradients, their controls, and the forms of GEM and A-GEM."""

import numpy as np
import pytest

import gradproj as gp


def draw(seed, T, N=12):
    """Return gradients of two kinds: about half of the seeds violate the shared constraint."""
    random = np.random.default_rng(seed)
    return random.normal(size=N), random.normal(size=(T, N)) + random.normal(size=N)


def released(g, G, margin, rank=None):
    """Compute the update of the paper's released code, written as it is there."""
    s = G.sum(0)
    if len(G) == 1:
        return g + max(margin, -(g @ s) / (s @ s)) * s
    B = np.linalg.svd(G - G.mean(0), full_matrices=False)[2][: min(len(G) - 1, rank or len(G))].T
    P = np.eye(len(g)) - B @ B.T
    c = (s @ P @ g) / (s @ P @ s)
    if s @ P @ g > 0:
        return P @ g
    return P @ g - min(c, -margin) * s + c * B @ B.T @ s


@pytest.mark.parametrize("rank", [None, 2])
@pytest.mark.parametrize("T", [1, 2, 3, 6])
def test_part_margin_is_the_released_rule(T, rank):
    kinds = set()
    for seed in range(40):
        g, G = draw(seed, T)
        method = gp.Decomposed(rank=rank, strength=0.05, replay="sum", rule="part-margin")
        found = gp.project_layers([g], [G], method, full_output=True)
        assert np.allclose(found.update[0], released(g, G, 0.05, rank))
        # The multiplier is that of the mean.
        kinds.add((bool(found.corrected[0]), bool(found.multiplier[0] > 0.05 * T)))
    assert kinds == {(False, False), (True, False), (True, True)}


@pytest.mark.parametrize("rank", [0, 2, None])
@pytest.mark.parametrize("form", ["mean", "sum"])
def test_replay_on_violations_alone(form, rank):
    seen = set()
    for seed in range(20):
        g, G = draw(seed, 4)
        plain = gp.project_layers([g], [G], gp.Decomposed(rank=rank), full_output=True)
        method = gp.Decomposed(rank=rank, strength=0.3, replay=form, rule="violated")
        added = 0.3 * (G.sum(0) if form == "sum" else G.mean(0)) * plain.corrected[0]
        assert np.allclose(gp.project(g, G, method), plain.update[0] + added)
        seen.add(bool(plain.corrected[0]))
    assert seen == {True, False}


@pytest.mark.parametrize("T", [1, 4])
@pytest.mark.parametrize("rule", ["violated", "part-margin"])
def test_the_control_replays_under_the_same_rule(rule, T):
    control = gp.Decomposed(shared=False, specific=False, strength=0.3, replay="sum", rule=rule)
    seen = set()
    for seed in range(20):
        g, G = draw(seed, T)
        violated = G.sum(0) @ g < 0
        replays = violated or (rule == "part-margin" and T == 1)
        found = gp.project_layers([g], [G], control, full_output=True)
        assert np.allclose(found.update[0], g + 0.3 * replays * G.sum(0))
        assert not found.corrected[0]
        assert not found.multiplier[0]
        seen.add(bool(violated))
    assert seen == {True, False}


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("rule", ["always", "violated", "part-margin"])
@pytest.mark.parametrize("T", [1, 2, 5])
def test_a_reduction_keeps_the_rule(T, rule, shared):
    """`project` uses one combination of the old gradients; `solve` sees all of them."""
    for seed in range(20):
        g, G = draw(seed, T)
        method = gp.Decomposed(rank=0, shared=shared, strength=0.2, replay="sum", rule=rule)
        coefficients = method.solve(gp.measure(g, G)).coefficients
        assert np.allclose(gp.project(g, G, method), g + coefficients @ G)


@pytest.mark.parametrize("ridge", [0.0, 0.5])
@pytest.mark.parametrize("form", ["mean", "sum"])
def test_agem_with_the_mean_or_the_sum(form, ridge):
    method = gp.AGEM(strength=0.05, replay=form, ridge=ridge)
    seen = set()
    for seed in range(20):
        g, G = draw(seed, 4)
        r = G.sum(0) if form == "sum" else G.mean(0)
        step = -(r @ g) / (r @ r + ridge)
        v = max(0.05, step) if r @ g < 0 else 0.0
        assert np.allclose(gp.project(g, G, method), g + v * r)
        assert np.allclose(method.solve(gp.measure(g, G)).coefficients @ G, v * r)
        seen.add((step > 0, step > 0.05))
    assert seen == {(False, False), (True, False), (True, True)}


def test_the_ridge_of_sgem_is_that_of_agem():
    g, G = np.asarray([1.0, 0.0]), np.asarray([[-1.0, 1.0]])
    assert np.allclose(gp.project(g, G, gp.SGEM(ridge=2.0)), gp.project(g, G, gp.AGEM(ridge=2.0)))
    assert np.allclose(gp.project(g, G, gp.SGEM(ridge=2.0)), [0.75, 0.25])


@pytest.mark.parametrize("ridge", [0.0, 1e-3, 0.5])
@pytest.mark.parametrize("form", ["mean", "sum"])
def test_gem_solves_its_published_quadratic_program(form, ridge):
    least = 0.1 / (5 if form == "mean" else 1)
    method = gp.GEM(strength=0.1, replay=form, ridge=ridge)
    for seed in range(20):
        g, G = draw(seed, 5)
        v = method.solve(gp.measure(g, G)).coefficients
        if (G @ g >= 0).all():
            assert not v.any()
            continue
        # The optimality conditions of min ½ vᵀ(GGᵀ + εI)v + (Gg)ᵀv with v >= γ.
        slope = (G @ G.T + ridge * np.eye(5)) @ v + G @ g
        assert (v >= least).all()
        assert (slope > -1e-9).all()
        assert np.abs(slope * (v - least)).max() < 1e-9


def test_the_ridge_of_gem_keeps_equal_tasks_beside_a_very_short_one():
    """The ridge is far longer than the third gradient and must not hide the other constraints."""
    a, b, c = np.random.default_rng(0).standard_normal((3, 2000)) / np.sqrt(2000)
    G = np.stack([10 * a, 10 * a + 0.01 * b, 1e-6 * c]).astype(np.float32)
    g = -a.astype(np.float32)
    w = gp.project(g, G, gp.GEM(ridge=1e-3))
    assert abs(G[0] @ w) < 1e-3 * abs(G[0] @ g)
