"""Learn the ten digits two at a time and still know the first ones at the end.

    python examples/digits.py [sgd | adam | adamw]

The digits are real handwriting and ship with scikit-learn. Momentum and Adam act after the
projection, so that a step may still conflict with the old tasks a little.
"""

import sys

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy

from gradproj.adapters.torch import EpisodicMemory, Projector

OPTIMIZERS = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.03, momentum=0.9),
    "adam": lambda parameters: torch.optim.Adam(parameters, lr=0.003),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=0.003, weight_decay=0.01),
}
PAIRS = [(0, 1), (2, 3), (4, 5), (6, 7), (8, 9)]


def loss(model, x, y):
    return cross_entropy(model(x), y)


def train(x, y, optimizer_name, remember, epochs=5, seed=0):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = OPTIMIZERS[optimizer_name](model.parameters())
    projector = Projector(model)
    memory = EpisodicMemory(per_task=64, policy="reservoir", seed=seed)
    for task, pair in enumerate(PAIRS):
        mine = torch.isin(y, torch.tensor(pair)).nonzero().flatten()
        for _ in range(epochs):
            for batch in mine[torch.randperm(len(mine))].split(10):
                old = [memory.sample(t, 20) for t in memory.tasks] if remember else []
                optimizer.zero_grad()
                projector.backward_batches(loss, (x[batch], y[batch]), old)
                optimizer.step()
        memory.add(task, x[mine], y[mine])
    return model


def main(optimizer_name="sgd"):
    x, y = (torch.from_numpy(a) for a in load_digits(return_X_y=True))
    x, test = x.float() / 16, torch.arange(len(y)) % 5 == 0
    for name, remember in (("fine-tuning", False), ("gradproj", True)):
        right = train(x[~test], y[~test], optimizer_name, remember)(x[test]).argmax(1) == y[test]
        by_pair = [float(right[torch.isin(y[test], torch.tensor(p))].float().mean()) for p in PAIRS]
        print(f"{name:12}", *(f"{a:6.1%}" for a in by_pair), f"  mean {sum(by_pair) / 5:.1%}")


if __name__ == "__main__":
    main(*sys.argv[1:])
