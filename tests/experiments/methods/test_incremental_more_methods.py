"""The losses and phases of GD, MUC, BLD, TPL and BiC against plain expressions."""

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
    second_step,
    snapshot,
)
from support.toy import weights
from torch.nn import functional

from gradproj.experiments.methods.class_incremental.finetuning import class_weights

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


def test_gd_takes_the_outside_images_with_the_largest_outputs_of_each_old_class():
    options = {"outside": "shuffled", "confident": 0.5, **QUICK["gd"]}
    learner = incremental("gd", options=options)
    learn(learner, 0)
    _, x, _, u = enter(learner, 1)
    odds = learner.teacher(learner.pool)[:, :2]
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
    near(
        learner.objective(task, x, y),
        wanted
        + 2 * weighted_kl(old[:, :2], z[:, :2], balanced(y, [0, 1]))
        + 2 * weighted_kl(new[:, 2:], z[:, 2:], balanced(y, [2, 3])),
    )


def balanced(y, classes):
    """The weight of each sample by the size of its class among `classes`; 1 outside of them."""
    counts = {c: int((y == c).sum()) for c in classes}
    total = sum(counts.values())
    return torch.tensor(
        [total / (counts[c] * len(classes)) if c in counts else 1.0 for c in y.tolist()]
    )


def weighted_kl(teacher, student, weight):
    rows = zip(teacher, student, strict=True)
    return (weight * torch.stack([kl(t[None], s[None]) for t, s in rows])).mean()


def test_gd_weighs_unequal_classes_in_every_term_of_the_balanced_phase():
    learner, task, (x, y) = second_step("gd", phase="balance")
    keep = torch.tensor([i for i, c in enumerate(y.tolist()) if c % 2 or i % 2])
    x, y = x[keep], y[keep]
    learner.weights = class_weights(y, 4)
    assert len(set(torch.bincount(y).tolist())) > 1
    z, old, new = learner.model(x), learner.teacher(x), learner.expert(x)
    each = z.logsumexp(1) - z[torch.arange(len(y)), y]
    wanted = (len(y) / (4 * torch.bincount(y))[y] * each).mean()
    wanted = wanted + 2 * weighted_kl(old[:, :2], z[:, :2], balanced(y, [0, 1]))
    wanted = wanted + 2 * weighted_kl(new[:, 2:], z[:, 2:], balanced(y, [2, 3]))
    near(learner.objective(task, x, y), wanted)


def test_gd_computes_features_in_training_mode_while_balancing():
    learner, task, (x, y) = second_step("gd", phase="balance")
    learner.model.train()
    learner.observe(task, x, y)
    assert learner.model.training


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


def test_muc_side_heads_are_made_with_the_task_and_not_again_for_their_phase():
    learner = incremental("muc", options=QUICK["muc"], weight_decay=0.5, momentum=0.9)
    initial = learner.build_model()
    learn(learner, 0)
    task, *data = enter(learner, 1)
    for side, start in zip(learner.model.sides, initial.sides, strict=True):
        assert torch.equal(side.weight[2:], start.weight[2:])
        assert torch.equal(side.bias[2:], start.bias[2:])
        assert not torch.equal(side.weight[:2], start.weight[:2])
    for _ in range(3):
        learner.observe(task, *data)
    shrunk = snapshot(learner.model)
    learner.begin_phase(task, learner.phases(task)[-1])
    assert torch.equal(learner.model.sides[0].weight, shrunk["sides.0.weight"])
    # Only the decay acts on them before their phase.
    assert shrunk["sides.0.weight"][2:].norm() < 0.99 * initial.sides[0].weight[2:].norm()


def test_muc_with_exemplars():
    learner, task, (x, y) = second_step("muc", {"exemplars": True, **QUICK["muc"]})
    assert set(y.tolist()) == {0, 1, 2, 3}
    z, sides = learner.model.both(x)
    known, known_sides = learner.teacher.both(x)
    terms = [kl(a[:, :2], b[:, :2]) for a, b in zip(known_sides, sides, strict=True)]
    wanted = 0.5 * entropy(z, y) + 0.5 * (kl(known[:, :2], z[:, :2]) + sum(terms) / 3)
    near(learner.objective(task, x, y), wanted)
    phase = learner.phases(task)[-1]
    assert set(learner.data(task, phase)[1].tolist()) == {2, 3}


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
