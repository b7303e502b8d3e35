"""A stream of a few samples and learners on it, small enough to compute by hand."""

import numpy as np
import torch

from gradproj.experiments import methods
from gradproj.experiments.data import Dataset
from gradproj.experiments.methods.setup import Setup
from gradproj.experiments.runs.resolve import resolve
from gradproj.experiments.streams import permuted, split


def toy_dataset(classes=4, per_class=6, shape=(1, 2, 3), seed=0):
    """Random bytes, `per_class` images of each class, the same for training and test."""
    x = np.random.default_rng(seed).integers(0, 256, (classes * per_class, *shape), dtype=np.uint8)
    images, labels = torch.from_numpy(x), torch.arange(classes * per_class) % classes
    return Dataset("toy", images, labels, images, labels, classes, 255.0)


def toy_stream(scenario="domain", tasks=2, dataset=None):
    dataset = dataset or toy_dataset()
    if scenario == "domain":
        return permuted(dataset, tasks=tasks, samples=None)
    return split(dataset, tasks=tasks, scenario=scenario)


def toy_learner(method, scenario="domain", *, options=None, tasks=2, hidden=(), **changes):
    """A learner with a linear network (unless `hidden`) and the whole memory at each step."""
    values = {
        "benchmark": "split-digits" if scenario != "domain" else "permuted-digits",
        "method": method,
        "network_options": {"hidden": list(hidden)},
        "memory": {"per_task": 50, "batch": 0},
        "options": options or {},
        **changes,
    }
    learner = methods.find(method)(Setup(resolve(values), toy_stream(scenario, tasks)))
    learner.model.train()
    return learner


def begin(learner, task):
    """Enter a task as the runner does; returns it with its training data."""
    current = learner.stream.tasks[task]
    learner.current = task
    learner.begin_task(current)
    return current, *current.train()


def train(learner, task, rows=slice(None), steps=1):
    """Do a whole task: the same batch in each step."""
    current, x, y = begin(learner, task)
    for _ in range(steps):
        learner.observe(current, x[rows], y[rows])
    learner.end_task(current)


def weights(learner):
    return torch.cat([p.detach().reshape(-1) for p in learner.model.parameters()]).clone()


def gradient(learner, x, y, outputs=slice(None)):
    """Gradient of the mean cross-entropy among `outputs`, by autograd on a plain expression."""
    start = outputs.start or 0
    logits = learner.model(x)[:, outputs]
    loss = torch.logsumexp(logits, 1) - logits[torch.arange(len(y)), y - start]
    parts = torch.autograd.grad(loss.mean(), list(learner.model.parameters()))
    return torch.cat([part.reshape(-1) for part in parts])
