"""The losses and phases of LwF, DR, iCaRL, EEIL and LUCIR, and what all systems share."""

import math

import pytest
import torch
from support.incremental import (
    QUICK,
    enter,
    entropy,
    incremental,
    kl,
    learn,
    near,
    same,
    second_step,
    snapshot,
)
from torch.nn import functional

from gradproj.experiments import methods
from gradproj.experiments.methods.class_incremental.learner import IncrementalLearner

SYSTEMS = [
    name for name, kind in methods.available().items() if issubclass(kind, IncrementalLearner)
]


# All systems ---------------------------------------------------------------------------------


@pytest.mark.parametrize("method", SYSTEMS)
def test_the_teacher_is_the_trained_previous_model(method):
    learner = incremental(method, options=QUICK.get(method, {}), momentum=0.9)
    initial = snapshot(learner.model)
    learn(learner, 0)
    first = snapshot(learner.model)
    assert not same(first, initial)
    assert same(snapshot(learner.teacher), first)
    assert not learner.teacher.training
    task, *data = enter(learner, 1)
    learner.observe(task, *data)
    assert same(snapshot(learner.teacher), first)
    assert not same(snapshot(learner.model), first)
    learn(learner, 1)
    assert same(snapshot(learner.teacher), snapshot(learner.model))


@pytest.mark.parametrize("method", [name for name in SYSTEMS if name != "icarl-original"])
def test_classes_not_yet_met_take_no_part(method):
    """The head is as if it had grown: later outputs change nothing and start as they were made."""
    learner = incremental(method, tasks=4, options=QUICK.get(method, {}), weight_decay=0.1)
    other = incremental(method, tasks=4, options=QUICK.get(method, {}), weight_decay=0.1)
    with torch.no_grad():
        other.network.head.weight[2:] = 7.0
    for each in (learner, other):
        learn(each, 0)
        learn(each, 1)
    assert torch.equal(learner.network.head.weight[:2], other.network.head.weight[:2])
    x = learner.stream.tasks[3].test()[0]
    assert set(other.predict(x, None).tolist()) <= {0, 1}
    fresh = incremental(method, tasks=4, options=QUICK.get(method, {}), weight_decay=0.1)
    learner.renew_outputs(learner.stream.tasks[2])
    assert torch.equal(learner.network.head.weight[2], fresh.network.head.weight[2])


def test_new_data_and_exemplars_are_trained_on_together():
    learner = incremental("dr", tasks=2)
    learn(learner, 0)
    _, x, y = enter(learner, 1)
    assert sorted(y.tolist()) == [0] * 4 + [1] * 4 + [2] * 6 + [3] * 6
    old = torch.cat(list(learner.exemplars.images.values()))
    assert torch.equal(x[-8:], old)


@pytest.mark.parametrize("method", ["muc", "bld"])
def test_systems_without_exemplars_see_new_data_alone(method):
    learner = incremental(method, options=QUICK.get(method, {}))
    learn(learner, 0)
    _, _, y = enter(learner, 1)
    assert set(y.tolist()) == {2, 3}
    assert len(learner.exemplars) == 0


# LwF, DR, iCaRL ---------------------------------------------------------------------------------


def test_lwf_with_exemplars():
    learner = incremental("lwf", tasks=4, options={"penalty": 0.5})
    learn(learner, 0)
    learn(learner, 1)
    task, x, y = enter(learner, 2)
    learner.observe(task, x, y)
    z = learner.model(x)
    # Two old tasks of one class each: a slice of one output has nothing to distil.
    near(learner.objective(task, x, y), entropy(z[:, :3], y))
    learner, task, (x, y) = second_step("lwf", {"penalty": 0.5})
    z, known = learner.model(x), learner.teacher(x)
    near(learner.objective(task, x, y), entropy(z, y) + 0.5 * 4 * kl(known[:, :2], z[:, :2]))
    assert kl(known[:, :2], z[:, :2]).item() > 1e-6


def test_lwf_as_first_published():
    learner, task, (x, y) = second_step("lwf", {"exemplars": False})
    assert set(y.tolist()) == {2, 3}
    z, known = learner.model(x), learner.teacher(x)
    near(learner.objective(task, x, y), entropy(z[:, 2:], y - 2) + 4 * kl(known[:, :2], z[:, :2]))


def test_dr_learns_from_two_teachers():
    learner, task, (x, y) = second_step("dr")
    z, old, new = learner.model(x), learner.teacher(x), learner.expert(x)
    wanted = entropy(z, y) + 0.5 * 4 * kl(old[:, :2], z[:, :2]) + 0.5 * 4 * kl(new[:, 2:], z[:, 2:])
    near(learner.objective(task, x, y), wanted)


def test_the_expert_learns_the_new_classes_and_is_unsure_about_the_old():
    learner, task, (x, y) = second_step("dr", phase="expert")
    assert not same(snapshot(learner.expert), snapshot(learner.model))
    z, new = learner.expert(x)[:, 2:], y >= 2
    wanted = entropy(z[new], y[new] - 2) - z[~new].log_softmax(1).mean()
    near(learner.expert_objective(task, x, y), wanted)
    before = snapshot(learner.expert)
    task, x, y = enter(learner, 1, "train")  # passes the expert's phase: it starts over
    assert same(snapshot(learner.expert), snapshot(learner.model))
    learner.observe(task, x, y)
    assert same(snapshot(learner.expert), before) is False
    assert not learner.expert.training


def test_icarl_targets_by_hand():
    learner, task, (x, y) = second_step("icarl-original")
    z, known = learner.model(x), learner.teacher(x)
    target = torch.zeros(len(y), 4)
    for row, label in enumerate(y.tolist()):
        target[row, :2] = torch.sigmoid(known[row, :2])
        target[row, 2:] = torch.tensor([float(label == 2), float(label == 3)])
    p = torch.sigmoid(z)
    wanted = -(target * p.log() + (1 - target) * (1 - p).log()).mean()
    near(learner.objective(task, x, y), wanted)


def test_icarl_names_the_nearest_mean_of_unit_features():
    learner = incremental("icarl-original")
    learn(learner, 0)
    learn(learner, 1)
    learner.model.eval()
    x, _ = learner.stream.tasks[0].test()
    with torch.no_grad():
        means = []
        for label in range(4):
            unit = [f / f.norm() for f in learner.model.features(learner.exemplars.images[label])]
            mean = torch.stack(unit).mean(0)
            means.append(mean / mean.norm())
        features = learner.model.features(x)
    wanted = [
        min(range(4), key=lambda c, f=f: float((f / f.norm() - means[c]).norm())) for f in features
    ]
    assert learner.predict(x, None).tolist() == wanted


# EEIL -------------------------------------------------------------------------------------------


def test_eeil_distils_each_earlier_step():
    learner, task, (x, y) = second_step("eeil")
    z, known = learner.model(x), learner.teacher(x)
    near(learner.objective(task, x, y), entropy(z, y) + kl(known[:, :2], z[:, :2]))


def test_eeil_balances_and_keeps_what_the_first_phase_learnt():
    learner = incremental("eeil", options=QUICK["eeil"], memory={"per_task": 3, "batch": 0})
    learn(learner, 0)
    task, *data = enter(learner, 1)
    learner.observe(task, *data)
    after_first = snapshot(learner.model)
    phase = learner.phases(task)[1]
    learner.begin_phase(task, phase)
    x, y = learner.data(task, phase)
    assert torch.bincount(y).tolist() == [3, 3, 3, 3]
    assert same(snapshot(learner.graduate), after_first)
    learner.begin_epoch(task, phase, 0)
    assert learner.optimizer.param_groups[0]["lr"] == 0.01
    learner.observe(task, x, y)
    z, known, first = learner.model(x), learner.teacher(x), learner.graduate(x)
    wanted = entropy(z, y) + kl(known[:, :2], z[:, :2]) + kl(first[:, 2:], z[:, 2:])
    near(learner.objective(task, x, y), wanted)
    learner.end_task(task)
    assert torch.bincount(learner.exemplars.all()[1]).tolist() == [1, 1, 1, 1]


def test_eeil_as_in_gd_weighs_each_old_task_by_its_share():
    learner, task, (x, y) = second_step("eeil", {"form": "gd", **QUICK["eeil"]})
    z, known = learner.model(x), learner.teacher(x)
    near(learner.objective(task, x, y), entropy(z, y) + 4 * kl(known[:, :2], z[:, :2]))


def test_eeil_as_in_gd_distils_the_balanced_phase_from_the_model_of_the_first():
    learner, task, data = second_step("eeil", {"form": "gd", **QUICK["eeil"]})
    phase = learner.phases(task)[1]
    learner.begin_phase(task, phase)
    learner.observe(task, *data)
    x, y = learner.data(task, phase)
    z, first = learner.model(x), learner.graduate(x)
    assert not torch.allclose(first, z)
    assert not torch.allclose(first, learner.teacher(x))
    parts = kl(first[:, :2], z[:, :2]) + kl(first[:, 2:], z[:, 2:])
    near(learner.objective(task, x, y), entropy(z, y) + 0.5 * 4 * parts)


@pytest.mark.parametrize(("method", "first"), [("eeil", []), ("gd", ["expert"])])
def test_the_training_before_a_balanced_phase_may_be_shorter_than_the_first_task(method, first):
    options = {"later_epochs": 3, "later_milestones": [2], "balance": {"epochs": 1}}
    learner = incremental(method, options=options, epochs=5, milestones=[4])
    learner.current = 1
    old, new = (learner.phases(task) for task in learner.stream.tasks)
    assert [(p.name, p.epochs, p.milestones) for p in old] == [("train", 5, None)]
    assert [(p.name, p.epochs, p.milestones) for p in new] == [
        *((name, 5, None) for name in first),
        ("train", 3, (2,)),
        ("balance", 1, ()),
    ]


def test_eeil_noise_has_the_wanted_deviation():
    learner = incremental("eeil", options={"noise": 0.3}, hidden=(200,))
    learner.epoch = 3
    for parameter in learner.model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    learner.adjust_gradients()
    drawn = torch.cat([p.grad.flatten() for p in learner.model.parameters()])
    assert float(drawn.std()) == pytest.approx(0.3 / 4**0.55, rel=0.1)


# LUCIR ------------------------------------------------------------------------------------------


def test_lucir_loss():
    options = {"penalty": 3.0, "hardest": 1, "margin": 0.4}
    learner, task, (x, y) = second_step("lucir", options)
    f, g = learner.model.features(x), learner.teacher.features(x)
    w = learner.model.head.weight
    cosines = (f / f.norm(dim=1, keepdim=True)) @ (w / w.norm(dim=1, keepdim=True)).T
    kept = 1 - (f * g).sum(1) / f.norm(dim=1) / g.norm(dim=1)
    old = [(c.tolist(), k) for c, k in zip(cosines, y.tolist(), strict=True) if k < 2]
    ranking = [max(0.0, 0.4 - c[k] + max(c[2:])) for c, k in old]
    wanted = entropy(learner.model.head.scale * cosines, y)
    wanted = wanted + 3.0 * math.sqrt(2 / 2) * kept.mean() + sum(ranking) / len(ranking)
    near(learner.objective(task, x, y), wanted)


def test_lucir_leaves_old_class_weights_where_they_were():
    learner = incremental("lucir", momentum=0.9, weight_decay=0.1)
    learn(learner, 0)
    before = learner.model.head.weight[:2].clone()
    task, *data = enter(learner, 1)
    start = snapshot(learner.model)
    for _ in range(5):
        learner.observe(task, *data)
    assert torch.equal(learner.model.head.weight[:2], before)
    assert not torch.equal(learner.model.head.weight[2:], start["head.weight"][2:])
    assert not torch.equal(learner.model.fc1.weight, start["fc1.weight"])


def test_lucir_imprints_new_classes():
    learner = incremental("lucir")
    learn(learner, 0)
    length = learner.model.head.weight[:2].norm(dim=1).mean()
    task = learner.stream.tasks[1]
    learner.current = 1
    learner.begin_task(task)
    x, y = task.train()
    for label in (2, 3):
        mean = functional.normalize(learner.model.features(x[y == label]), dim=1).mean(0)
        near(learner.model.head.weight[label], length * mean / mean.norm())
