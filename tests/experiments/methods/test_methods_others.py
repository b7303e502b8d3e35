"""Every other method's update against a computation by hand."""

import math

import pytest
import torch
from support.toy import begin, gradient, toy_learner, train, weights
from torch.nn import functional

from gradproj.experiments.common.errors import ConfigError
from gradproj.experiments.methods.setup import Phase
from gradproj.experiments.runs.resolve import resolve
from gradproj.experiments.runs.runner import run

LR = 0.1


def close(found, wanted):
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-6)


def one_step(learner, task, rows=slice(0, 4)):
    """(weights before, gradient of the new loss there, weights after)."""
    current, x, y = begin(learner, task)
    before = weights(learner)
    g = gradient(learner, x[rows], y[rows], current.outputs)
    learner.observe(current, x[rows], y[rows])
    return before, g, weights(learner)


# Fine-tuning, and what all share ----------------------------------------------------------------


def test_single_descends_the_softmax_gradient():
    learner = toy_learner("single")
    current, x, y = begin(learner, 0)
    weight, bias = (p.detach().clone() for p in learner.model.parameters())
    learner.observe(current, x[:4], y[:4])
    flat = x[:4].flatten(1)
    error = functional.softmax(flat @ weight.T + bias, 1) - functional.one_hot(y[:4], 4)
    close(learner.model.head.weight.detach(), weight - LR * error.T @ flat / 4)
    close(learner.model.head.bias.detach(), bias - LR * error.mean(0))


def test_split_training_leaves_other_outputs_alone_and_tests_inside_the_slice():
    learner = toy_learner("single", "task")
    before = learner.model.head.weight.detach().clone()
    train(learner, 1)
    moved = (learner.model.head.weight != before).any(1)
    assert moved.tolist() == [False, False, True, True]
    task = learner.stream.tasks[0]
    assert set(learner.predict(task.test()[0], task).tolist()) <= {0, 1}


def test_class_incremental_predictions_are_among_the_classes_seen():
    learner = toy_learner("single", "class")
    learner.model.head.bias.data = torch.tensor([0.0, 0.0, 0.0, 100.0])
    _, x, _ = begin(learner, 0)
    assert set(learner.predict(x, None).tolist()) <= {0, 1}
    assert learner.mask(0).tolist() == [0.0, 0.0, -math.inf, -math.inf]
    begin(learner, 1)
    assert set(learner.predict(x, None).tolist()) == {3}
    assert learner.mask(0).tolist() == [0.0] * 4


def test_rate_falls_at_the_milestones():
    learner = toy_learner("single", milestones=[2, 4], lr_factor=0.5, epochs=6)
    task, rates = learner.stream.tasks[0], []
    for epoch in range(6):
        learner.begin_epoch(task, learner.phases(task)[0], epoch)
        rates.append(learner.optimizer.param_groups[0]["lr"])
    assert rates == [0.1, 0.1, 0.05, 0.05, 0.025, 0.025]


# Regularisation ---------------------------------------------------------------------------------


@pytest.mark.parametrize("scenario", ["domain", "task"])
def test_ewc_pulls_back_by_the_squared_mean_gradient_of_the_first_samples(scenario):
    learner = toy_learner("ewc", scenario, tasks=2, options={"penalty": 3.0, "samples": 5})
    task, x, y = begin(learner, 0)
    learner.observe(task, x[:4], y[:4])
    learner.observe(task, x[4:8], y[4:8])
    star = weights(learner)
    fisher = gradient(learner, x[:5], y[:5], task.outputs) ** 2
    one_step(learner, 1)  # no pull yet: the weights are at θ*
    before, g, after = one_step(learner, 1, slice(4, 8))
    close(after, before - LR * (g + 2 * 3.0 * fisher * (before - star)))


def test_ewc_does_not_hold_outputs_that_the_old_task_had_not_seen():
    learner = toy_learner("ewc", "class", tasks=2)
    task, x, y = begin(learner, 0)
    learner.observe(task, x[:4], y[:4])
    begin(learner, 1)
    rows = learner.weight[: learner.model.head.weight.numel()].view_as(learner.model.head.weight)
    assert rows[:2].sum() > 0
    assert rows[2:].sum() == 0


def test_ewc_adds_up_over_tasks():
    learner = toy_learner("ewc", tasks=3, options={"penalty": 3.0, "samples": 4})
    pulls = []
    for task in range(2):
        current, x, y = begin(learner, task)
        learner.observe(current, x[:4], y[:4])
        pulls.append((gradient(learner, x[:4], y[:4]) ** 2, weights(learner)))
    before, g, after = one_step(learner, 2)
    pull = sum(2 * 3.0 * fisher * (before - star) for fisher, star in pulls)
    close(after, before - LR * (g + pull))


def test_si_follows_the_path_and_penalises_by_it():
    learner = toy_learner("si", options={"penalty": 2.0, "damping": 0.1})
    current, x, y = begin(learner, 0)
    start, path = weights(learner), 0
    for rows in (slice(0, 4), slice(4, 8)):
        before, g = weights(learner), gradient(learner, x[rows], y[rows])
        learner.observe(current, x[rows], y[rows])
        path = path - g * (weights(learner) - before)
    learner.end_task(current)
    star = weights(learner)
    importance = path / ((star - start) ** 2 + 0.1)
    close(learner.importance, importance)
    one_step(learner, 1)
    before, g, after = one_step(learner, 1, slice(4, 8))
    close(after, before - LR * (g + 2 * 2.0 * importance * (before - star)))


def test_mas_takes_the_mean_of_absolute_gradients_of_the_squared_output():
    learner = toy_learner("mas", options={"penalty": 2.0, "samples": 100})
    train(learner, 0)
    x = learner.stream.tasks[0].train()[0].flatten(1)
    out = learner.model(x).detach()
    by_sample = torch.cat([2 * out[:, :, None] * x[:, None, :], 2 * out[:, :, None]], 2).abs()
    mean = by_sample.mean(0)
    importance = torch.cat([mean[:, :-1].reshape(-1), mean[:, -1]])
    close(learner.importance, importance)
    star = weights(learner)
    one_step(learner, 1)
    before, g, after = one_step(learner, 1, slice(4, 8))
    close(after, before - LR * (g + 2.0 * importance * (before - star)))


def test_mas_measures_the_outputs_that_compete():
    moved = {}
    for scenario in ("task", "class"):
        learner = toy_learner("mas", scenario, options={"samples": 100})
        train(learner, 0)
        first = learner.importance.clone()
        train(learner, 1)
        moved[scenario] = (learner.importance - first)[: 4 * 6].view(4, 6).sum(1) > 0
    assert moved["task"].tolist() == [False, False, True, True]
    assert moved["class"].tolist() == [True] * 4


def test_ogd_moves_no_stored_output_of_a_linear_network():
    learner = toy_learner("ogd", options={"samples": 3}, tasks=3)
    # Three stored samples of the first task: an output that is linear in the weights stays put.
    train(learner, 0)
    assert learner.basis.shape == (3, 28)
    close(learner.basis @ learner.basis.T, torch.eye(3))
    before, g, after = one_step(learner, 1)
    w = (before - after) / LR
    close(w, g - (learner.basis @ g) @ learner.basis)
    assert float((w - g).norm()) > 1e-3
    assert float((learner.basis @ w).abs().max()) < 1e-5


# Expansion --------------------------------------------------------------------------------------


def test_independent_trains_one_network_and_starts_from_the_one_before():
    learner = toy_learner("independent", "task", options={"network": {"hidden": [3]}})
    first, second = learner.model
    assert first.head.out_features == 2
    begin(learner, 0)
    train(learner, 0)
    kept = [p.detach().clone() for p in first.parameters()]
    task, x, y = begin(learner, 1)
    for a, b in zip(second.parameters(), kept, strict=True):
        assert torch.equal(a, b)
    learner.observe(task, x, y)
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), kept, strict=True))
    assert not torch.equal(second.fc1.weight, first.fc1.weight)
    assert set(learner.predict(x, task).tolist()) <= {2, 3}


def test_multimodel_shares_all_but_the_first_layer():
    learner = toy_learner("multimodel", options={"hidden": 5})
    private = learner.model["private"]
    before = {name: p.detach().clone() for name, p in learner.model.named_parameters()}
    assert not any(before[name].any() for name in before if name.endswith("bias"))
    assert not torch.equal(private[0].weight, private[1].weight)
    train(learner, 0)
    moved = {n for n, p in learner.model.named_parameters() if not torch.equal(p, before[n])}
    assert moved == {name for name in before if not name.startswith("private.1")}


# Replay -----------------------------------------------------------------------------------------


def test_tinyer_steps_on_the_mean_over_both_batches_each_in_its_slice():
    learner = toy_learner("tinyer", "task", options={"batch": 100})
    train(learner, 0, slice(0, 4))
    task, x, y = begin(learner, 1)
    old_x, old_y, numbers = learner.memory.all(0)
    assert numbers.tolist() == [0] * 4
    before = weights(learner)
    new = gradient(learner, x[:6], y[:6], task.outputs)
    old = gradient(learner, old_x, old_y, slice(0, 2))
    learner.observe(task, x[:6], y[:6])
    close(weights(learner), before - LR * (6 * new + 4 * old) / 10)
    assert len(learner.memory) == 10


@pytest.mark.parametrize("beta", [0.0, 0.5])
def test_derpp_stores_outputs_from_before_the_step_and_pulls_towards_them(beta):
    learner = toy_learner("derpp", "task", options={"alpha": 0.3, "beta": beta, "batch": 100})
    task, x, y = begin(learner, 0)
    stored = learner.model(x[:4]).detach()
    learner.observe(task, x[:4], y[:4])
    close(learner.memory.all(0)[3], stored)
    task1, x1, y1 = begin(learner, 1)
    before = weights(learner)
    new = gradient(learner, x1[:4], y1[:4], task1.outputs)
    difference = functional.mse_loss(learner.model(x[:4]), stored)
    parts = torch.autograd.grad(difference, list(learner.model.parameters()))
    pull = torch.cat([p.reshape(-1) for p in parts])
    labels = gradient(learner, x[:4], y[:4], task.outputs)
    learner.observe(task1, x1[:4], y1[:4])
    close(weights(learner), before - LR * (new + 0.3 * pull + beta * labels))


def test_gdumb_keeps_task_and_label_balanced_and_makes_room():
    learner = toy_learner("gdumb", memory={"per_task": 6})  # 12 in all
    image = torch.zeros(1, 2, 3)
    for label in (0,) * 20:
        learner.offer(image, label, 0)
    assert learner.counts == {(0, 0): 12}
    for label in (1,) * 20:
        learner.offer(image, label, 0)
    assert learner.counts == {(0, 0): 6, (0, 1): 6}
    for label in (0, 1) * 20:
        learner.offer(image, label, 1)
    assert learner.counts == {(0, 0): 3, (0, 1): 3, (1, 0): 3, (1, 1): 3}
    stored = list(zip(learner.numbers, learner.labels, strict=True))
    assert {key: stored.count(key) for key in stored} == learner.counts
    assert len(learner.images) == 12


def test_gdumb_learns_from_its_memory_alone_with_fresh_weights():
    learner = toy_learner(
        "gdumb", "task", options={"passes": 1, "batch": 50}, memory={"per_task": 3}
    )
    task, x, y = begin(learner, 0)
    collect, learn = learner.phases(task)
    start = weights(learner)
    learner.observe(task, x, y)
    assert torch.equal(weights(learner), start)
    learner.model.head.weight.data += 1.0
    learner.begin_phase(task, learn)
    assert torch.equal(weights(learner), start)
    images, labels, numbers = learner.data(task, learn)
    assert len(images) == 6
    assert learner.data(task, collect)[0].shape == x.shape
    g = gradient(learner, images, labels, task.outputs)
    learner.begin_epoch(task, learn, 1)
    learner.observe(task, images, labels, numbers)
    close(weights(learner), start - LR * g)


@pytest.mark.parametrize("masked", [True, False])
def test_gdumb_trains_with_the_outputs_of_the_samples_task_or_with_all_so_far(masked):
    options = {"masked": masked, "passes": 1, "batch": 50}
    learner = toy_learner("gdumb", "task", options=options, tasks=2)
    for number in (0, 1):
        task, x, y = begin(learner, number)
        learner.observe(task, x, y)
    start = weights(learner)
    task, learn = learner.stream.tasks[1], learner.phases(learner.stream.tasks[1])[1]
    images, labels, numbers = learner.data(task, learn)
    mine = numbers == 1
    outputs = task.outputs if masked else slice(0, task.outputs.stop)
    g = gradient(learner, images[mine], labels[mine], outputs)
    learner.begin_epoch(task, learn, 1)
    learner.observe(task, images[mine], labels[mine], numbers[mine])
    close(weights(learner), start - LR * g)


def test_gdumb_rates_warm_up_then_follow_the_published_schedule():
    learner = toy_learner("gdumb", lr=1.0, options={"least_rate": 0.05})
    published = torch.optim.SGD(learner.model.parameters(), lr=1.0)
    schedule = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(
        published, T_0=1, T_mult=2, eta_min=0.05
    )
    rates, wanted = [], [0.1]
    for epoch in range(20):
        learner.begin_epoch(learner.stream.tasks[0], Phase("learn", 20, 1), epoch)
        rates.append(learner.optimizer.param_groups[0]["lr"])
        wanted.append(schedule.get_last_lr()[0])
        published.step()
        schedule.step()
    assert rates == pytest.approx(wanted[:20])


def test_gdumb_keeps_no_more_than_its_images():
    learner = toy_learner("gdumb", memory={"per_task": 1})
    task, x, y = begin(learner, 0)
    learner.observe(task, x, y)
    sizes = {image.untyped_storage().nbytes() for image in learner.images}
    assert sizes == {x[0].nbytes}


@pytest.mark.parametrize("clip", [0.0, 0.01])
def test_gdumb_clips_gradients_unless_told_not_to(clip):
    learner = toy_learner("gdumb", options={"clip": clip})
    task, x, y = begin(learner, 0)
    before, g = weights(learner), gradient(learner, x, y)
    assert g.norm() > 0.01
    learner.observe(task, x, y, torch.zeros_like(y))
    if clip:
        g = g * (clip / g.norm())
    close(weights(learner), before - LR * g)


def test_gdumb_at_the_end_only_has_nothing_to_show_before():
    learner = toy_learner("gdumb", options={"every_task": False})
    begin(learner, 0)
    assert not learner.ready()
    assert len(learner.phases(learner.stream.tasks[0])) == 1
    begin(learner, 1)
    assert learner.ready()


def test_joint_trains_on_all_tasks_so_far_each_sample_in_its_slice():
    learner = toy_learner("joint", "task")
    start = weights(learner)
    train_task = learner.stream.tasks[1]
    learner.model.head.weight.data += 1.0
    begin(learner, 1)
    assert torch.equal(weights(learner), start)
    x, y, numbers = learner.data(train_task, learner.phases(train_task)[0])
    assert numbers.tolist() == [0] * 12 + [1] * 12
    g = (
        gradient(learner, x[:12], y[:12], slice(0, 2))
        + gradient(learner, x[12:], y[12:], slice(2, 4))
    ) / 2
    learner.observe(train_task, x, y, numbers)
    close(weights(learner), start - LR * g)


# iCaRL ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("benchmark", "method"),
    [("split-digits", "icarl"), ("class-digits", "icarl-original"), ("class-digits", "lucir")],
)
def test_methods_that_need_every_class_refuse_tasks_that_lack_one(benchmark, method, tmp_path):
    values = {"benchmark": benchmark, "method": method, "stream": {"samples": 1}}
    with pytest.raises(ConfigError, match=r"samples=1: task 0 then shows 1 of its 2 classes"):
        run(resolve(values), tmp_path)


def test_icarl_distils_one_exemplar_a_class_and_names_the_nearest_mean():
    learner = toy_learner("icarl", "task", options={"exemplars": 2, "penalty": 2.0})
    train(learner, 0, steps=3)
    assert [len(learner.images[label]) for label in (0, 1)] == [1, 1]
    exemplars = torch.cat([learner.images[0], learner.images[1]])
    stored = torch.cat([learner.targets[0], learner.targets[1]])
    close(stored, learner.model(exemplars).detach())
    one_step(learner, 1)
    task, x, y = begin(learner, 1)
    before, g = weights(learner), gradient(learner, x[:4], y[:4], task.outputs)
    now = functional.log_softmax(learner.model(exemplars)[:, :2], 1)
    target = functional.softmax(stored[:, :2], 1)
    divergence = (target * (target.log() - now)).sum(1).mean()
    parts = torch.autograd.grad(divergence, list(learner.model.parameters()))
    pull = torch.cat([p.reshape(-1) for p in parts])
    learner.observe(task, x[:4], y[:4])
    close(weights(learner), before - LR * (g + 2.0 * pull))

    old = learner.stream.tasks[0]
    test_x = old.test()[0]
    distance = (learner.model(test_x)[:, None] - stored[None]).square().sum(2)
    assert torch.equal(learner.predict(test_x, old), distance.argmin(1))


def test_icarl_guesses_evenly_before_it_has_exemplars():
    learner = toy_learner("icarl", "task")
    task = learner.stream.tasks[1]
    assert learner.predict(torch.zeros(5, 1, 2, 3), task).tolist() == [2, 3, 2, 3, 2]
