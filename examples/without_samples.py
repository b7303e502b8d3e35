"""Learn five tasks one after the other without storing a single sample of the old ones.

    python examples/without_samples.py

Each task shows handwritten digits, which ship with scikit-learn, with its own order of the pixels.
"preserve" remembers, per layer, the second moments of the inputs of old tasks, and takes from each
step what would change the answers to them. The table has the accuracy on all tasks at the end.
"""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy

from gradproj.adapters.torch import Preserver

TASKS = 5


def train(tasks, learning_rate, strength=None, epochs=5, seed=0):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(64, 100), nn.ReLU(), nn.Linear(100, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=learning_rate)
    preserver = None
    if strength is not None:
        preserver = Preserver(model, strength=strength)
        preserver.attach(optimizer)
    for x, y in tasks:
        for _ in range(epochs):
            for batch in torch.randperm(len(y)).split(10):
                optimizer.zero_grad()
                cross_entropy(model(x[batch]), y[batch]).backward()
                optimizer.step()
        if preserver is not None:  # the task is over: keep its answers from now on
            with torch.no_grad(), preserver.observe():
                model(x)
            preserver.consolidate()
    return model


def main():
    x, y = (torch.from_numpy(a) for a in load_digits(return_X_y=True))
    x, test = x.float() / 16, torch.arange(len(y)) % 5 == 0
    orders = [torch.randperm(64, generator=torch.Generator().manual_seed(k)) for k in range(TASKS)]
    tasks = [(x[~test][:, order], y[~test]) for order in orders]
    print(f"{'':12}", *(f"task {k + 1}" for k in range(TASKS)), "  mean")
    for name, options in (
        ("fine-tuning", {"learning_rate": 0.1}),
        ("preserve", {"learning_rate": 0.3, "strength": 3.0}),
    ):
        model = train(tasks, **options)
        right = [model(x[test][:, order]).argmax(1) == y[test] for order in orders]
        shares = [float(each.float().mean()) for each in right]
        print(f"{name:12}", *(f"{a:6.1%}" for a in shares), f" {sum(shares) / TASKS:6.1%}")


if __name__ == "__main__":
    main()
