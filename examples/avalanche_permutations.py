"""Compare plugins for Avalanche on permutations of handwritten digits.

    pip install gradproj[avalanche] scikit-learn
    python examples/avalanche_permutations.py

Each experience shows the digits with the pixels in another order. The table has the mean accuracy
on held-out digits of all experiences after the last one, and the CPU time of training.
"""

import time
import warnings

import torch
from avalanche.benchmarks import benchmark_from_datasets
from avalanche.benchmarks.utils import as_classification_dataset
from avalanche.training.plugins import GEMPlugin
from avalanche.training.supervised import Naive
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import TensorDataset

import gradproj as gp
from gradproj.adapters.avalanche import PreservePlugin, ProjectPlugin
from gradproj.adapters.torch import EpisodicMemory, Preserver

PER_TASK = 50  # stored samples


def load():
    """Return inputs and labels for training and for testing."""
    x, y = (torch.from_numpy(part) for part in load_digits(return_X_y=True))
    x, test = x.float() / 16, torch.arange(len(y)) % 5 == 0
    return x[~test], y[~test], x[test], y[test]


def permute(data, tasks, seed):
    """Return a training stream and the test tensors of each experience."""
    draws = torch.Generator().manual_seed(seed)
    x, y, test_x, test_y = data
    sets, tests = [], []
    for _ in range(tasks):
        order = torch.randperm(x.shape[1], generator=draws)
        permuted = TensorDataset(x[:, order], y)
        permuted.targets = y.tolist()
        sets.append(as_classification_dataset(permuted))
        tests.append((test_x[:, order], test_y))
    return benchmark_from_datasets(train=sets).train_stream, tests


def make_plugins(model, seed):
    def memory():
        return EpisodicMemory(PER_TASK, policy="random", seed=seed)

    gem = gp.GEM(strength=0.5)
    yield "Naive", []
    yield "Avalanche's GEMPlugin", [GEMPlugin(PER_TASK, 0.5)]
    # As Avalanche does it: one layer, and all stored samples in each step.
    yield (
        "ProjectPlugin, GEM",
        [ProjectPlugin(memory(), method=gem, layers="all", old_batch_size=PER_TASK)],
    )
    yield "ProjectPlugin, default", [ProjectPlugin(memory(), old_batch_size=PER_TASK)]
    yield "PreservePlugin, none stored", [PreservePlugin(Preserver(model, strength=1.0))]


def main(seed=0, tasks=5, data=None, lr=0.1):
    warnings.filterwarnings("ignore")  # Avalanche: no loggers
    data = data or load()
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(data[0].shape[1], 100), nn.ReLU(), nn.Linear(100, 10))
    start = {name: value.clone() for name, value in model.state_dict().items()}
    for name, plugins in make_plugins(model, seed):
        model.load_state_dict(start)
        torch.manual_seed(seed)
        stream, tests = permute(data, tasks, seed)
        optimizer = torch.optim.SGD(model.parameters(), lr=lr)
        strategy = Naive(model=model, optimizer=optimizer, train_mb_size=10, plugins=plugins,
                         evaluator=None)  # fmt: skip
        began = time.process_time()
        for experience in stream:
            strategy.train(experience)
        seconds = time.process_time() - began
        right = [float((model(x).argmax(1) == y).double().mean()) for x, y in tests]
        print(f"{name:28}{sum(right) / tasks:7.1%}{seconds:7.1f} s")


if __name__ == "__main__":
    main()
