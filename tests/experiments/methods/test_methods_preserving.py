"""Every input-space projection's step against a computation by hand."""

import pytest
import torch
from support.running import QUICK, SPLIT, finish
from support.toy import begin, gradient, toy_learner, train, weights

from gradproj.experiments.common.errors import ConfigError
from gradproj.experiments.runs.resolve import resolve

LR = 0.1


def near(found, wanted):
    # The step is a difference of float32 weights, divided by the rate.
    assert float((found - wanted).abs().max()) < 2e-4 * float(wanted.abs().max())


def moments(learner, task):
    """Second moments of the linear network's inputs, with a 1 for the bias."""
    x = learner.stream.tasks[task].train()[0].flatten(1).double()
    a = torch.cat([x, torch.ones(len(x), 1)], 1)
    return a.T @ a / len(a)


def scaled(S):
    return S * len(S) / S.trace()


def as_matrix(vector):
    """Weight (4, 6) and bias (4,) of the linear network as one matrix (4, 7)."""
    return torch.cat([vector[:24].reshape(4, 6), vector[24:, None]], 1).double()


def step_of(learner, task, rows=slice(0, 4)):
    """The step that is taken, and the gradient of the new loss, as matrices."""
    current, x, y = begin(learner, task)
    g = gradient(learner, x[rows], y[rows], current.outputs)
    before = weights(learner)
    learner.observe(current, x[rows], y[rows])
    return as_matrix((before - weights(learner)) / LR), as_matrix(g)


def trained(method, tasks=3, **arguments):
    learner = toy_learner(method, tasks=tasks, **arguments)
    for task in range(tasks - 1):
        train(learner, task, steps=5)
    return learner


@pytest.mark.parametrize("method", ["preserve", "preserve-replay", "gpm", "sgp", "owm"])
@pytest.mark.parametrize("scenario", ["domain", "task", "class"])
def test_the_first_task_is_plain_descent(method, scenario):
    learner = toy_learner(method, scenario, hidden=(5,))
    current, x, y = begin(learner, 0)
    g = gradient(learner, x[:4], y[:4], current.outputs)
    before = weights(learner)
    learner.observe(current, x[:4], y[:4])
    near((before - weights(learner)) / LR, g)


@pytest.mark.parametrize("strength", [0.0, 0.3, 10.0])
def test_preserve_solves_the_ridge_problem_with_scaled_moments(strength):
    learner = trained("preserve", options={"strength": strength})
    w, g = step_of(learner, 2)
    S = scaled(moments(learner, 0)) + scaled(moments(learner, 1))
    near(w, g @ torch.linalg.inv(torch.eye(7) + strength * S))


def test_owm_has_a_regulariser_and_moments_as_they_are():
    learner = trained("owm", options={"alpha": 0.25})
    w, g = step_of(learner, 2)
    S = moments(learner, 0) + moments(learner, 1)
    near(w, g @ torch.linalg.inv(torch.eye(7) + 4 * S))


@pytest.mark.parametrize("form", ["mean", "sum"])
def test_preserve_replay_projects_the_whole_update(form):
    options = {"strength": 3.0, "gamma": 0.5, "replay": form}
    learner = trained("preserve-replay", options=options)
    olds = [as_matrix(gradient(learner, *learner.memory.all(task))) for task in range(2)]
    w, g = step_of(learner, 2)
    whole = g + 0.5 * sum(olds) / (2 if form == "mean" else 1)
    S = scaled(moments(learner, 0)) + scaled(moments(learner, 1))
    near(w, whole @ torch.linalg.inv(torch.eye(7) + 3.0 * S))


def test_gpm_removes_the_leading_inputs_of_the_first_task():
    learner = trained("gpm", tasks=2, options={"share": [0.9], "samples": 0})
    w, g = step_of(learner, 1)
    values, vectors = torch.linalg.eigh(moments(learner, 0))
    kept = values.flip(0).cumsum(0) / values.sum()
    B = vectors.flip(1)[:, : int((kept < 0.9).sum()) + 1].T
    assert 0 < len(B) < 7  # else the test says nothing
    near(w, g - g @ B.T @ B)


def test_the_shares_of_gpm_follow_the_layers_and_grow_with_the_tasks():
    options = {"share": [0.5, 0.75], "growth": 0.125}
    learner = toy_learner("gpm", tasks=4, hidden=(5, 5), options=options)
    shares = []
    for task in range(3):
        train(learner, task)
        shares.append(list(learner.preserver.share.values()))
    assert shares == [[0.5, 0.75, 0.75], [0.625, 0.875, 0.875], [0.75, 1.0, 1.0]]


def test_sgp_removes_less_than_gpm_and_all_of_it_in_the_limit():
    gpm = trained("gpm", tasks=2, options={"share": [0.9], "samples": 0})
    wanted, g = step_of(gpm, 1)
    limit = {"share": [0.9], "samples": 0, "importance": 1e9}
    near(step_of(trained("sgp", tasks=2, options=limit), 1)[0], wanted)
    some = step_of(trained("sgp", tasks=2, options={**limit, "importance": 1.0}), 1)[0]
    assert wanted.norm() < 0.999 * some.norm() < 0.999 * g.norm()


@pytest.mark.parametrize(
    ("scenario", "protected"),
    [("domain", ["fc1", "head"]), ("class", ["fc1", "head"]), ("task", ["fc1"])],
)
def test_a_head_of_own_outputs_is_not_protected(scenario, protected):
    learner = toy_learner("preserve", scenario, hidden=(5,))
    assert list(learner.preserver.protected) == protected


def test_some_samples_measure_the_inputs():
    learner = toy_learner("preserve", options={"samples": 1, "strength": 1e6})
    train(learner, 0)
    w, g = step_of(learner, 1)
    # One input is one direction: all others are left as they are.
    assert torch.linalg.matrix_rank((g - w).float(), tol=1e-2 * g.norm()) == 1


def test_measuring_leaves_the_network_in_training_mode_and_without_gradients():
    learner = trained("preserve", tasks=2)
    assert learner.model.training
    assert all(p.grad is None or p.grad.isfinite().all() for p in learner.model.parameters())


@pytest.mark.parametrize("share", [[], [0.0], [1.5]])
def test_shares_out_of_range_are_refused(share):
    values = {"benchmark": "split-digits", "method": "gpm", "options": {"share": share}}
    with pytest.raises(ConfigError, match=r"options\.share=.* is invalid: expected"):
        resolve(values)


@pytest.mark.parametrize(
    ("values", "stored"),
    [
        ({**QUICK, "method": "preserve"}, 0),
        ({**QUICK, "method": "gpm"}, 0),
        ({**QUICK, "method": "single"}, 0),
        ({**QUICK, "method": "preserve-replay"}, 8),
        ({**QUICK, "method": "gem"}, 8),
        ({**QUICK, "method": "tinyer"}, 8),
        ({**QUICK, "method": "joint"}, 40),
        ({**SPLIT, "method": "icarl", "options": {"exemplars": 10}}, 4),
        ({**SPLIT, "stream": {"tasks": 5, "scenario": "class"}, "method": "lucir"}, 8),
        ({**SPLIT, "stream": {"tasks": 5, "scenario": "class"}, "method": "ours"}, 8),
    ],
)
def test_the_result_counts_stored_samples(values, stored, tmp_path):
    assert finish(values, tmp_path / "run")["stored_per_task"] == pytest.approx(stored)
