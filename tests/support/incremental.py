"""Class-incremental learners on a toy stream, driven as the runner drives them."""

import torch

from support.toy import toy_learner

CLASS = {"memory": {"per_task": 4, "batch": 0}, "epochs": 2, "batch": 8}


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
