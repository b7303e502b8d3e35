"""Every gradient-projection method's step against a computation by hand."""

import numpy as np
import pytest
import torch
from support.toy import begin, gradient, toy_learner, train, weights

import gradproj as gp

LR = 0.1


def step_of(learner, task, rows=slice(0, 4)):
    """The direction that a step takes, and the gradients (new, old) at its start."""
    current, x, y = begin(learner, task)
    outputs = [t.outputs for t in learner.stream.tasks]
    olds = [gradient(learner, *learner.memory.all(k), outputs[k]) for k in range(task)]
    new = gradient(learner, x[rows], y[rows], outputs[task])
    before = weights(learner)
    step = learner.observe(current, x[rows], y[rows])
    return (before - weights(learner)) / LR, new, olds, step


def near(found, wanted):
    # The step is a difference of float32 weights, divided by the rate.
    assert float((found - wanted).abs().max()) < 2e-4 * float(wanted.abs().max())


@pytest.mark.parametrize("scenario", ["domain", "task"])
def test_the_first_task_is_plain_descent(scenario):
    w, new, _, step = step_of(toy_learner("ours", scenario), 0)
    near(w, new)
    assert step.corrected is None


@pytest.mark.parametrize("strength", [0.0, 0.5])
@pytest.mark.parametrize("method", ["gem", "agem", "sgem", "ours"])
@pytest.mark.parametrize("scenario", ["domain", "task"])
def test_one_old_task_is_one_constraint(method, strength, scenario):
    """With one old task all of them are w = g + v g₁; they differ in v alone."""
    options = {"strength": strength} | ({"layers": "all"} if method == "ours" else {})
    learner = toy_learner(method, scenario, options=options)
    train(learner, 0, steps=30)
    w, g, (old,), _ = step_of(learner, 1)
    product = float(g @ old)
    needed = max(0.0, -product / float(old @ old))
    v = needed + strength if method == "ours" else max(needed, strength * (product < 0))
    near(w, g + v * old)


@pytest.mark.parametrize("form", ["mean", "sum"])
def test_replay_adds_the_old_gradients_and_nothing_else(form):
    learner = toy_learner("replay", tasks=3, options={"strength": 0.25, "replay": form})
    train(learner, 0, steps=5)
    train(learner, 1, steps=5)
    w, g, olds, _ = step_of(learner, 2)
    near(w, g + 0.25 * sum(olds) / (len(olds) if form == "mean" else 1))


def test_whole_network_gem_satisfies_every_constraint():
    learner = toy_learner("gem", tasks=4)
    for task in range(3):
        train(learner, task, steps=20)
    w, g, olds, _ = step_of(learner, 3)
    assert min(float(g @ old) for old in olds) < -1e-4  # else the test says nothing
    assert min(float(w @ old) for old in olds) > -1e-5


@pytest.mark.parametrize(
    ("options", "method"),
    [
        ({"rank": 0, "layers": "all", "strength": 0.0}, gp.Decomposed(rank=0)),
        ({"rank": "full", "layers": "all", "strength": 0.0}, gp.Decomposed()),
        ({"rank": 1, "layers": "all", "strength": 0.0}, gp.Decomposed(rank=1)),
        (
            {"rank": 1, "layers": "all", "relaxation": "first"},
            gp.Decomposed(1, "first", strength=1),
        ),
        ({"rank": 1, "layers": "all", "relaxation": "last"}, gp.Decomposed(1, "last", strength=1)),
        ({"rank": 0.5, "layers": "all", "strength": 0.5}, gp.Decomposed(0.5, strength=0.5)),
        ({"rank": 0, "replay": "sum"}, gp.Decomposed(rank=0, strength=1, replay="sum")),
        ({"rank": "full", "strength": 0.0}, gp.Decomposed()),
        ({"rank": 1, "strength": 0.25}, gp.Decomposed(rank=1, strength=0.25)),
    ],
)
def test_variants_of_ours_are_the_core_on_the_same_gradients(options, method):
    learner = toy_learner("ours", tasks=4, options=options, hidden=(5,))
    for task in range(3):
        train(learner, task, steps=10)
    w, g, olds, step = step_of(learner, 3)
    sizes = [
        sum(p.numel() for p in m.parameters()) for m in (learner.model.fc1, learner.model.head)
    ]
    if options.get("layers") == "all":
        sizes = [sum(sizes)]
    G = torch.stack(olds).double().numpy()
    cuts = np.cumsum(sizes)[:-1]
    wanted = gp.project_layers(
        np.split(g.double().numpy(), cuts), np.split(G, cuts, axis=1), method
    )
    near(w, torch.from_numpy(np.concatenate(wanted)).float())
    assert len(step.ranks) == len(sizes)
    assert 0 <= step.corrected <= 1


def test_layers_in_groups_of_five_tensors():
    learner = toy_learner("gem", hidden=(5, 5, 5), options={"layers": "five"})
    assert [len(names) for names in learner.projector.layers.values()] == [5, 3]


def test_original_agem_takes_one_batch_from_all_old_memories():
    learner = toy_learner("agem", "task", options={"form": "original", "reference": 8}, tasks=4)
    for task in range(3):
        train(learner, task)
    begin(learner, 3)
    (batch,) = learner.old_batches()
    x, y, masks = batch
    assert len(x) == len(y) == len(masks) == 8
    for image, label, mask in zip(x, y, masks, strict=True):
        task = int(label)  # four tasks of one class each
        assert (learner.memory.all(task)[0] == image).flatten(1).all(1).any()
        assert torch.equal(mask, learner.masks[task])


def test_original_agem_draws_without_replacement():
    learner = toy_learner("agem", options={"form": "original", "reference": 1000})
    train(learner, 0)
    begin(learner, 1)
    ((x, _, _),) = learner.old_batches()
    assert len(x.unique(dim=0)) == len(x) == 24


def test_original_sgem_asks_for_the_gradient_of_the_drawn_task_alone():
    learner = toy_learner("sgem", "task", options={"form": "original"}, tasks=4)
    for task in range(3):
        train(learner, task)
    begin(learner, 3)
    drawn = []
    for _ in range(200):
        ((_, y, _),) = learner.old_batches()
        assert len(y.unique()) == 1
        drawn.append(int(y[0]))
    counts = np.bincount(drawn, minlength=3)
    assert (np.abs(counts - 200 / 3) < 4 * np.sqrt(200 * 2 / 9)).all()


def test_memory_batches_are_drawn_from_each_old_task():
    learner = toy_learner("gem", "task", memory={"per_task": 4, "batch": 3}, tasks=4)
    for task in range(3):
        train(learner, task)
    begin(learner, 3)
    batches = list(learner.old_batches())
    assert [sorted(set(y.tolist())) for _, y, _ in batches] == [[0], [1], [2]]
    assert [len(y) for _, y, _ in batches] == [3, 3, 3]


def test_memory_keeps_the_latest_samples_of_a_task():
    learner = toy_learner("gem", memory={"per_task": 5, "batch": 0})
    current, x, y = begin(learner, 0)
    for start in (0, 4, 8):
        learner.observe(current, x[start : start + 4], y[start : start + 4])
    kept = learner.memory.all(0)[0]
    assert {tuple(i.flatten().tolist()) for i in kept} == {
        tuple(i.flatten().tolist()) for i in x[7:12]
    }
