"""A tiny model and a benchmark of two experiences that contradict each other."""

import torch
from avalanche.benchmarks import (
    benchmark_from_datasets,
    task_incremental_benchmark,
    with_classes_timeline,
)
from avalanche.benchmarks.utils import as_classification_dataset
from avalanche.models import IncrementalClassifier
from avalanche.training.supervised import Naive
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset


def make_task(kind, count=32):
    draws = torch.Generator().manual_seed(kind)
    x = torch.randn(count, 6, generator=draws)
    return x, ((x[:, 0] > 0).long() + kind) % 2


TASKS = [make_task(0), make_task(1)]


def make_benchmark(tasks=TASKS, labelled=False):
    """Without task labels, or with one label per experience."""
    sets = []
    for x, y in tasks:
        data = TensorDataset(x, y)
        data.targets = y.tolist()
        sets.append(as_classification_dataset(data))
    benchmark = benchmark_from_datasets(train=sets)
    return with_classes_timeline(task_incremental_benchmark(benchmark) if labelled else benchmark)


def make_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 2))


def make_growing_model():
    """Its output layer is replaced when classes are added."""
    head = IncrementalClassifier(8, initial_out_features=2, masking=False)
    return nn.Sequential(nn.Linear(6, 8), head)


def make_strategy(model, *plugins, lr=0.2, momentum=0.0, epochs=1):
    return Naive(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=lr, momentum=momentum),
        train_mb_size=8,
        train_epochs=epochs,
        plugins=list(plugins),
        evaluator=None,
    )


def train_all(strategy, benchmark=None):
    for experience in (benchmark or make_benchmark()).train_stream:
        strategy.train(experience, shuffle=False)
    return strategy.model


def weights(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


@torch.no_grad()
def loss_on(model, task):
    x, y = TASKS[task]
    return float(cross_entropy(model(x), y))
