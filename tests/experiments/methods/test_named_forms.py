"""Every named form of a projection: its step from plain formulas, its control, and that it runs."""

from itertools import product

import numpy as np
import pytest
from support.toy import begin, gradient, toy_learner, train, weights

from gradproj.experiments import methods
from gradproj.experiments.methods.projection.learner import ProjectionLearner
from gradproj.experiments.methods.projection.preserving import PreservingLearner
from gradproj.experiments.runs import presets
from gradproj.experiments.runs.resolve import resolve

SERIES = "mnist-permutations"
LR, OLD, SEEDS = 0.1, 3, range(8)
# Modules and groups of five tensors of a network with one hidden layer of five units.
SIZES = {"all": [59], "module": [35, 24], "five": [59]}


# The published updates, from the new gradient g and the old ones G, one per row -------------------


def decomposed(g, G, rank, chosen=slice(None)):
    """Eq. 11 with P from a singular value decomposition, and whether ḡ'Pg is negative."""
    mean = G.mean(0)
    _, sizes, rows = np.linalg.svd((G - mean)[chosen], full_matrices=False)
    B = rows[sizes > 1e-6 * max(sizes.max(), 1e-30)][:rank].T
    P = np.eye(len(g)) - B @ B.T
    slope = mean @ P @ g
    if slope >= 0:
        return P @ g, False
    return P @ g - slope / (mean @ P @ mean) * P @ mean, True


def with_replay(g, G, rank, rule, chosen=slice(None)):
    """0.5 times the sum, by one of the three rules; the last one as the paper's code has it."""
    w, violated = decomposed(g, G, rank, chosen)
    s = G.sum(0)
    if rule == "part-margin":
        return released(g, G, rank)
    return w + 0.5 * s * (rule == "always" or violated)


def released(g, G, rank):
    s = G.sum(0)
    _, sizes, rows = np.linalg.svd(G - G.mean(0), full_matrices=False)
    B = rows[sizes > 1e-6 * sizes.max()][:rank].T
    P = np.eye(len(g)) - B @ B.T
    c = (s @ P @ g) / (s @ P @ s)
    if c > 0:
        return P @ g
    return P @ g - min(c, -0.5) * s + c * B @ B.T @ s


def replayed(g, G, rule):
    s = G.sum(0)
    return g + 0.5 * s * (rule == "always" or s @ g < 0)


def one_constraint(g, r, strength, ridge=0.0):
    """A-GEM's update for the reference r, with the strength and the ridge of the released code."""
    if r @ g >= 0:
        return g
    return g + max(strength, -(r @ g) / (r @ r + ridge)) * r


def gem(g, G, strength, ridge=0.0):
    """GEM's quadratic program, by trying every set of bounds that are reached."""
    if (G @ g >= 0).all():
        return g
    A, b = G @ G.T + ridge * np.eye(len(G)), G @ g
    for reached in product([True, False], repeat=len(G)):
        at, free = np.array(reached), ~np.array(reached)
        v = np.full(len(G), strength)
        v[free] = np.linalg.solve(A[np.ix_(free, free)], -(b + A @ np.where(at, v, 0.0))[free])
        slope = A @ v + b
        if (v[free] >= strength).all() and (slope[at] >= -1e-12).all():
            return g + G.T @ v
    raise AssertionError("no point satisfies the conditions of the optimum")


FIRST, LAST = slice(0, 1), slice(OLD - 1, OLD)
FORMS = {
    "ours": lambda g, G: with_replay(g, G, 5, "always"),
    "ours-violated": lambda g, G: with_replay(g, G, 5, "violated"),
    "ours-part-margin": lambda g, G: with_replay(g, G, 5, "part-margin"),
    "ours-released": lambda g, G: with_replay(g, G, 3, "part-margin"),
    "ours-printed": lambda g, G: decomposed(g, G, 5)[0],
    "shared-only": lambda g, G: with_replay(g, G, 0, "always"),
    "shared-layerwise": lambda g, G: with_replay(g, G, 0, "always"),
    "full": lambda g, G: with_replay(g, G, OLD, "always"),
    "full-pca": lambda g, G: with_replay(g, G, 5, "always"),
    "layerwise": lambda g, G: with_replay(g, G, OLD, "always"),
    "replay": lambda g, G: replayed(g, G, "always"),
    "replay-violated": lambda g, G: replayed(g, G, "violated"),
    # With several old tasks, part-margin replays as "violated" does.
    "replay-part-margin": lambda g, G: replayed(g, G, "violated"),
    "replay-released": lambda g, G: replayed(g, G, "violated"),
    "agem": lambda g, G: one_constraint(g, G.mean(0), 0.5),
    "agem-layerwise": lambda g, G: one_constraint(g, G.mean(0), 0.5),
    "agem-sum": lambda g, G: one_constraint(g, G.sum(0), 0.5),
    "agem-strong": lambda g, G: one_constraint(g, G.mean(0), 3.0),
    "agem-released": lambda g, G: one_constraint(g, G.mean(0), 0.5, 1e-3),
    # All tasks store as many samples, and the batch holds all of them: its gradient is the mean.
    "agem-original": lambda g, G: one_constraint(g, G.mean(0), 0.0),
    "gem": lambda g, G: gem(g, G, 0.5),
    "gem-layerwise": lambda g, G: gem(g, G, 0.5),
    "gem-printed": lambda g, G: gem(g, G, 0.0),
    "gem-released": lambda g, G: gem(g, G, 0.5, 1e-3),
}
DRAWN = {
    "sgem": lambda g, old: one_constraint(g, old, 0.5),
    "sgem-released": lambda g, old: one_constraint(g, old, 0.5, 1e-3),
    "sgem-original": lambda g, old: one_constraint(g, old, 0.0),
}


def step_of(entry, seed, **options):
    """The direction of a step after three tasks, the gradients at its start, and the layers."""
    config = presets.find(f"{SERIES}/{entry}")
    options = {**vars(config.options), **options}
    learner = toy_learner(config.method, tasks=4, options=options, hidden=(5,), seed=seed)
    for task in range(OLD):
        train(learner, task, steps=5)
    current, x, y = begin(learner, OLD)
    olds = [gradient(learner, *learner.memory.all(task)).numpy() for task in range(OLD)]
    g, before = gradient(learner, x[:4], y[:4]).double().numpy(), weights(learner)
    learner.observe(current, x[:4], y[:4])
    w = ((before - weights(learner)) / LR).double().numpy()
    return w, g, np.stack(olds).astype(np.float64), SIZES[getattr(config.options, "layers", "all")]


def by_layer(form, g, G, sizes):
    cuts = np.cumsum(sizes)[:-1]
    pieces = zip(np.split(g, cuts), np.split(G, cuts, axis=1), strict=True)
    return np.concatenate([form(*piece) for piece in pieces])


def near(found, wanted):
    # The step is a difference of float32 weights, divided by the rate.
    return float(np.abs(found - wanted).max()) < 3e-4 * float(np.abs(wanted).max())


@pytest.mark.parametrize("entry", FORMS)
def test_the_step_of_each_named_form_is_the_published_one(entry):
    seen = set()
    for seed in SEEDS:
        w, g, G, sizes = step_of(entry, seed)
        assert near(w, by_layer(FORMS[entry], g, G, sizes)), seed
        seen |= {bool(product < 0) for product in G.sum(0, keepdims=True) @ g}
    assert seen == {True, False}  # else only one branch was compared


@pytest.mark.parametrize("entry", DRAWN)
def test_the_step_of_sgem_is_that_of_one_old_task(entry):
    drawn = set()
    for seed in SEEDS:
        w, g, G, _ = step_of(entry, seed)
        drawn |= {k for k, old in enumerate(G) if near(w, DRAWN[entry](g, old))}
        assert any(near(w, DRAWN[entry](g, old)) for old in G), seed
    assert drawn == set(range(OLD))


@pytest.mark.parametrize(("entry", "chosen"), [("first-k", FIRST), ("last-k", LAST)])
def test_the_step_of_the_other_relaxations(entry, chosen):
    for seed in SEEDS:
        w, g, G, sizes = step_of(entry, seed, rank=1)
        wanted = by_layer(
            lambda g, G: with_replay(g, G, 1, "always", chosen),
            g, G, sizes,
        )  # fmt: skip
        assert near(w, wanted), seed


def projections():
    """All presets of a projection, with whether it has a control."""
    for name in presets.available():
        config = presets.find(name)
        learner = methods.find(config.method)
        if issubclass(learner, ProjectionLearner | PreservingLearner):
            yield config, learner.control(vars(config.options))


def test_every_projection_has_a_control_that_can_be_run():
    without = set()
    for config, control in projections():
        if control is None:
            without.add(config.method)
            # S-GEM without its constraint replays one drawn task per step; no method does so.
            assert config.method == "replay" or (
                config.method == "sgem" and config.options.strength
            )
            continue
        method, options = control
        resolve({"benchmark": config.benchmark, "method": method, "options": options})
    assert without == {"replay", "sgem"}
