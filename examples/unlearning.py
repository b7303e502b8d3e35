"""Forget one digit and keep the rest: unlearning with A-GEM.

    python examples/unlearning.py

The new loss asks for equal probabilities on the digit to forget. The old loss is that of the other
digits. A-GEM removes from each step the part that would increase the old loss. The table has the
accuracy on test images of both kinds.
"""

import copy

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy

import gradproj as gp
from gradproj.adapters.torch import Projector

FORGET = 3


def forget_loss(model, x):
    return -model(x).log_softmax(1).mean()


def unlearn(model, forget, retain, project, steps):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    projector = Projector(model, gp.AGEM(), layers="all")
    draws = torch.Generator().manual_seed(0)
    for _ in range(steps):
        x = forget[torch.randint(len(forget), (32,), generator=draws)]
        chosen = torch.randint(len(retain[0]), (64,), generator=draws)
        optimizer.zero_grad()
        if project:
            kept = [lambda c=chosen: cross_entropy(model(retain[0][c]), retain[1][c])]
            projector.backward(lambda x=x: forget_loss(model, x), kept)
        else:
            forget_loss(model, x).backward()
        optimizer.step()


def main(epochs=10, steps=200):
    x, y = (torch.from_numpy(a) for a in load_digits(return_X_y=True))
    x, test, forget = x.float() / 16, torch.arange(len(y)) % 5 == 0, y == FORGET
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 100), nn.ReLU(), nn.Linear(100, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(epochs):
        for batch in torch.randperm(len(y)).split(10):
            batch = batch[~test[batch]]
            optimizer.zero_grad()
            cross_entropy(model(x[batch]), y[batch]).backward()
            optimizer.step()
    print(f"{'':22} digit {FORGET}  others")
    for name, project in (("before", None), ("forget loss alone", False), ("with A-GEM", True)):
        mine = copy.deepcopy(model)
        if project is not None:
            retain = (x[~test & ~forget], y[~test & ~forget])
            unlearn(mine, x[~test & forget], retain, project, steps)
        right = mine(x).argmax(1) == y
        shares = [float(right[test & part].double().mean()) for part in (forget, ~forget)]
        print(f"{name:22} {shares[0]:7.1%} {shares[1]:7.1%}")


if __name__ == "__main__":
    main()
