"""Compare plugins for Avalanche on permutations of handwritten digits.

    pip install gradproj[avalanche] scikit-learn
    python examples/avalanche_permutations.py 0  # the seed
    python examples/avalanche_permutations.py 0 mnist  # needs gradproj[experiments]

Each experience shows the digits with the pixels in another order. The table has the mean accuracy
on held-out digits of all experiences after the last one, and the CPU time of training. With MNIST
there are 10 experiences of 1,000 images, and 256 of each are stored.
"""

import sys
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


def load_mnist(seed):
    """Return 1,000 training images and all test images."""
    from gradproj.experiments.data import load

    data = load("mnist")
    chosen = torch.randperm(60_000, generator=torch.Generator().manual_seed(seed))[:1000]
    train_x, test_x = (x.flatten(1).float() / 255 for x in (data.train_x[chosen], data.test_x))
    return train_x, data.train_y[chosen], test_x, data.test_y


def load_digits_of_scikit_learn():
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


def make_plugins(model, seed, stored):
    def project(**options):  # each step uses all stored samples, as that of Avalanche
        memory = EpisodicMemory(stored, policy="random", seed=seed)
        return ProjectPlugin(memory, old_batch_size=stored, **options)

    yield "Naive", []
    yield "Avalanche's GEMPlugin", [GEMPlugin(stored, 0.5)]
    yield "ProjectPlugin, GEM", [project(method=gp.GEM(strength=0.5), layers="all")]
    yield "ProjectPlugin, default", [project()]
    replay = gp.Decomposed(shared=False, specific=False, strength=1.0)  # the default's control
    yield "ProjectPlugin, replay alone", [project(method=replay)]
    yield "PreservePlugin, none stored", [PreservePlugin(Preserver(model, strength=1.0))]


def main(seed=0, data="digits", tasks=None):
    warnings.filterwarnings("ignore")  # Avalanche: no loggers
    seed, mnist = int(seed), data == "mnist"
    tasks, stored = tasks or (10 if mnist else 5), 256 if mnist else 50
    data = load_mnist(seed) if mnist else load_digits_of_scikit_learn()
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(data[0].shape[1], 100), nn.ReLU(), nn.Linear(100, 10))
    start = {name: value.clone() for name, value in model.state_dict().items()}
    for name, plugins in make_plugins(model, seed, stored):
        model.load_state_dict(start)
        torch.manual_seed(seed)
        stream, tests = permute(data, tasks, seed)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        strategy = Naive(model=model, optimizer=optimizer, train_mb_size=10, plugins=plugins,
                         evaluator=None)  # fmt: skip
        began = time.process_time()
        for experience in stream:
            strategy.train(experience)
        seconds = time.process_time() - began
        right = [float((model(x).argmax(1) == y).double().mean()) for x, y in tests]
        print(f"{name:28}{sum(right) / tasks:7.1%}{seconds:7.1f} s")


if __name__ == "__main__":
    main(*sys.argv[1:])
