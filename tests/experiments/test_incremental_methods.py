"""Every class-incremental system's loss and phases against plain expressions."""

import math

import pytest
import torch
from support.incremental import enter, incremental, learn, same, snapshot
from support.toy import weights
from torch.nn import functional

from gradproj.experiments import methods
from gradproj.experiments.incremental.learner import IncrementalLearner

SYSTEMS = [
    name for name, kind in methods.available().items() if issubclass(kind, IncrementalLearner)
]
QUICK = {
    "eeil": {"balance": {"epochs": 2}},
    "gd": {"balance": {"epochs": 2}},
    "muc": {"training": {"epochs": 2}},
    "bic": {"correction": {"epochs": 2}},
}


def near(found, wanted):
    torch.testing.assert_close(found.detach(), wanted.detach(), rtol=1e-5, atol=1e-6)


def kl(teacher, student, temperature=2.0):
    """Mean over the samples of Σ p log(p / q)."""
    p, q = (teacher / temperature).softmax(1), (student / temperature).softmax(1)
    return (p * (p / q).log()).sum(1).mean()


def entropy(logits, y):
    return (logits.logsumexp(1) - logits[torch.arange(len(y)), y]).mean()


def second_step(method, options=None, phase="train", **changes):
    """A learner in its second step with teacher and student apart, and the data of the phase."""
    learner = incremental(method, options=options or QUICK.get(method, {}), **changes)
    learn(learner, 0)
    task, *data = enter(learner, 1, phase)
    learner.observe(task, *data)
    learner.observe(task, *data)
    return learner, task, data


# What all share ---------------------------------------------------------------------------------


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


def test_eeil_noise_has_the_wanted_deviation():
    learner = incremental("eeil", options={"noise": 0.3}, hidden=(200,))
    learner.epoch = 3
    for parameter in learner.model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    learner.disturb()
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


# GD ---------------------------------------------------------------------------------------------


def test_gd_without_outside_data():
    learner, task, (x, y) = second_step("gd")
    z, old, new = learner.model(x), learner.teacher(x), learner.expert(x)
    wanted = entropy(z, y) + 2 * kl(old[:, :2], z[:, :2]) + 2 * kl(new[:, 2:], z[:, 2:])
    near(learner.objective(task, x, y), wanted)


def test_gd_distils_all_old_classes_jointly():
    learner = incremental("gd", tasks=4, options=QUICK["gd"])
    learn(learner, 0)
    learn(learner, 1)
    task, x, y = enter(learner, 2)
    learner.observe(task, x, y)
    z, old = learner.model(x)[:, :3], learner.teacher(x)
    # One new class: the expert's outputs for it alone say nothing.
    near(learner.objective(task, x, y), entropy(z, y) + 2 / 3 * 4 * kl(old[:, :2], z[:, :2]))


def test_gd_with_outside_data():
    options = {"outside": "shuffled", **QUICK["gd"]}
    learner, task, (x, y, u) = second_step("gd", options)
    assert len(u) == len(x)
    images = torch.cat([x, u])
    z, old, new = learner.model(images), learner.teacher(images), learner.expert(images)
    n, total = len(x), 0.0
    p, c = old[n:, :2].softmax(1), new[n:, 2:].softmax(1)
    for row in range(len(u)):
        peak = p[row].max()
        target = [v if v == peak else v / 3 for v in p[row]] + [
            v * (1 - peak) * 2 / 3 for v in c[row]
        ]
        assert sum(target).item() == pytest.approx(1.0)
        total = total - sum(t * q for t, q in zip(target, z[n + row].log_softmax(0), strict=True))
    wanted = (n * entropy(z[:n], y) + total) / (2 * n)
    wanted = wanted + 2 * kl(old[:, :2], z[:, :2]) + 2 * kl(new[:, 2:], z[:, 2:])
    near(learner.objective(task, x, y, u), wanted)


def test_gd_takes_the_surest_outside_images_of_each_old_class():
    options = {"outside": "shuffled", "confident": 0.5, **QUICK["gd"]}
    learner = incremental("gd", options=options)
    learn(learner, 0)
    _, x, _, u = enter(learner, 1)
    odds = learner.teacher(learner.pool)[:, :2].softmax(1)
    wanted = int(0.5 * len(x)) // 2
    for label in range(2):
        best = odds[:, label].topk(wanted).indices.sort().values
        found = learner.rows[label::2][:wanted].sort().values
        assert torch.equal(found, best)
    assert torch.equal(u, learner.pool[learner.rows])


def test_gd_balances_the_classifier_alone():
    learner, task, (x, y) = second_step("gd", phase="balance")
    start = snapshot(learner.model)
    counts = torch.bincount(y).float()
    assert learner.weights.tolist() == pytest.approx((len(y) / (4 * counts)).tolist())
    learner.observe(task, x, y)
    end = snapshot(learner.model)
    assert {name for name in start if not torch.equal(start[name], end[name])} == {
        "head.weight",
        "head.bias",
    }
    z, old, new = learner.model(x), learner.teacher(x), learner.expert(x)
    each = z.logsumexp(1) - z[torch.arange(len(y)), y]
    wanted = (learner.weights[y] * each).mean()
    wanted = wanted + 2 * kl(old[:, :2], z[:, :2]) + 2 * kl(new[:, 2:], z[:, 2:])
    near(learner.objective(task, x, y), wanted)


# MUC and BLD ------------------------------------------------------------------------------------


def test_muc_distils_main_and_side_heads():
    learner, task, (x, y) = second_step("muc")
    z, sides = learner.model.both(x)
    known, known_sides = learner.teacher.both(x)
    terms = [kl(a[:, :2], b[:, :2]) for a, b in zip(known_sides, sides, strict=True)]
    wanted = 0.5 * entropy(z[:, 2:], y - 2) + 0.5 * (kl(known[:, :2], z[:, :2]) + sum(terms) / 3)
    near(learner.objective(task, x, y), wanted)


def test_muc_side_heads_are_right_inside_and_disagree_outside():
    learner, task, (x, y) = second_step("muc", phase="sides")
    u = learner.pool[:5]
    features, outside = learner.model.network.features(x), learner.model.network.features(u)
    wanted, odds = 0.0, []
    for side in learner.model.sides:
        wanted = wanted + entropy(side(features)[:, 2:], y - 2)
        odds.append(side(outside)[:, 2:].softmax(1))
    for k, other in ((0, 1), (0, 2), (1, 2)):
        wanted = wanted - (odds[k] - odds[other]).abs().mean()
    near(learner.side_objective(task, x, y, u), wanted)


def test_muc_trains_side_heads_alone_in_their_phase():
    learner, task, data = second_step("muc", phase="sides")
    start = snapshot(learner.model)
    learner.observe(task, *data)
    moved = {n for n, v in snapshot(learner.model).items() if not torch.equal(v, start[n])}
    assert moved == {f"sides.{k}.{n}" for k in range(3) for n in ("weight", "bias")}
    assert torch.equal(learner.model.sides[0].weight[:2], start["sides.0.weight"][:2])


def test_bld_records_warms_up_and_keeps():
    learner = incremental("bld", options={"warm_up": 1, "steps": 1, "penalty": 0.5}, hidden=())
    learn(learner, 0)
    task, x, y = enter(learner, 1)
    weight, bias = (p.detach().clone() for p in learner.model.parameters())
    flat = x.flatten(1)
    recorded = flat @ weight[:2].T + bias[:2]
    for joint in (False, True):
        weight.requires_grad_(), bias.requires_grad_()
        z = flat @ weight.T + bias
        loss = entropy(z[:, 2:], y - 2) + (0.5 * 4 * kl(recorded, z[:, :2]) if joint else 0.0)
        grads = torch.autograd.grad(loss, [weight, bias])
        weight, bias = (weight - 0.1 * grads[0]).detach(), (bias - 0.1 * grads[1]).detach()
    learner.observe(task, x, y)
    near(learner.model.head.weight, weight)
    near(learner.model.head.bias, bias)


# TPL, BiC ---------------------------------------------------------------------------------------


def test_tpl_compares_edges_with_those_at_the_end_of_the_last_task():
    options = {"penalty": 2.0, "vertices": 100}
    learner = incremental("tpl", options=options)
    learn(learner, 0)
    images, _ = learner.exemplars.all()
    before = learner.model.features(images).detach()
    near(learner.vertices, functional.normalize(before, dim=1))
    task, x, y = enter(learner, 1)
    learner.observe(task, x, y)
    now, edges = learner.model.features(images).detach(), []
    for f in (before, now):
        unit = f / f.norm(dim=1, keepdim=True).clamp(min=1e-12)
        edges.append(torch.stack([unit[i] @ unit[j] for i in range(8) for j in range(i)]))
    wanted = entropy(learner.model(x), y) - 2.0 * torch.corrcoef(torch.stack(edges))[0, 1]
    near(learner.objective(task, x, y), wanted)


def test_bic_weighs_both_losses_by_the_share_of_old_classes():
    learner, task, (x, y) = second_step("bic")
    z, known = learner.model(x), learner.teacher(x)
    near(learner.objective(task, x, y), 0.5 * entropy(z, y) + 0.5 * kl(known[:, :2], z[:, :2]))


def test_bic_holds_out_equally_many_of_each_class():
    learner = incremental("bic", options={"held_out": 0.5})
    learn(learner, 0)
    task, *_ = enter(learner, 1)
    train, correction = learner.phases(task)
    kept, held = learner.data(task, train)[1], learner.data(task, correction)[1]
    assert torch.bincount(held).tolist() == [2, 2, 2, 2]
    assert torch.bincount(kept).tolist() == [2, 2, 4, 4]


def test_bic_corrects_the_new_classes_and_nothing_else():
    learner, task, (x, y) = second_step("bic", {"held_out": 0.5}, phase="correction")
    before, scale, shift = (
        weights(learner),
        *(p.detach().clone() for p in learner.bias.parameters()),
    )
    z = learner.model(x).detach()
    a, b = scale[1].clone().requires_grad_(), shift[1].clone().requires_grad_()
    grads = torch.autograd.grad(entropy(torch.cat([z[:, :2], a * z[:, 2:] + b], 1), y), [a, b])
    learner.observe(task, x, y)
    assert torch.equal(weights(learner), before)
    near(learner.bias.scales, torch.stack([scale[0], a - 0.1 * grads[0]]))
    near(learner.bias.shifts, torch.stack([shift[0], b - 0.1 * grads[1]]))
    with torch.no_grad():
        learner.bias.shifts[1] = 100.0
    assert set(learner.predict(x, None).tolist()) <= {2, 3}
