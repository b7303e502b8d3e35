"""Class-incremental learners on a toy stream, driven as the runner drives them."""

import torch

from support.toy import toy_learner

CLASS = {"memory": {"per_task": 4, "batch": 0}, "epochs": 2, "batch": 8}
# Phases of their own, cut short.
QUICK = {
    "eeil": {"balance": {"epochs": 2}},
    "gd": {"balance": {"epochs": 2}},
    "muc": {"training": {"epochs": 2}},
    "bic": {"correction": {"epochs": 2}},
}


def incremental(method, *, tasks=2, options=None, hidden=(5,), **changes):
    """A learner of four classes of six images; by default eight exemplars, the latest."""
    values = {**CLASS, **changes}
    return toy_learner(method, "class", tasks=tasks, hidden=hidden, options=options, **values)


def enter(learner, task, phase="train"):
    """Begin a task and its phases up to `phase`; returns the task and the data of that phase."""
    current = learner.stream.tasks[task]
    learner.current = task
    learner.begin_task(current)
    for each in learner.phases(current):
        learner.begin_phase(current, each)
        if each.name == phase:
            learner.begin_epoch(current, each, 0)
            return current, *learner.data(current, each)
    raise AssertionError(f"task {task} has no phase {phase}")


def learn(learner, task):
    """Do a whole task, one batch a pass."""
    current = learner.stream.tasks[task]
    learner.current = task
    learner.begin_task(current)
    for phase in learner.phases(current):
        learner.begin_phase(current, phase)
        batch = learner.data(current, phase)
        for epoch in range(phase.epochs):
            learner.begin_epoch(current, phase, epoch)
            learner.model.train()
            learner.observe(current, *batch)
    learner.end_task(current)


def snapshot(module):
    return {name: value.detach().clone() for name, value in module.state_dict().items()}


def same(one, two):
    assert one.keys() == two.keys()
    return all(torch.equal(one[name], two[name]) for name in one)


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
