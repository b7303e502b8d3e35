"""
The strength of Preserver
=========================

A larger strength λ preserves more of the old tasks and leaves less room for the new one. Two tasks
of handwritten digits show the trade-off: the second has another order of the pixels.
"""

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits
from torch.nn.functional import cross_entropy

from gradproj.adapters.torch import Preserver

torch.set_num_threads(1)
x, y = (torch.tensor(part) for part in load_digits(return_X_y=True))
x = x.float() / 16
train, test = slice(0, 1200), slice(1200, None)
order = torch.randperm(64, generator=torch.Generator().manual_seed(0))
tasks = [x, x[:, order]]


def accuracy(model, x):
    with torch.no_grad():
        return 100 * float((model(x[test]).argmax(1) == y[test]).float().mean())


def learn(strength):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 100), torch.nn.ReLU(), torch.nn.Linear(100, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    preserver = Preserver(model, strength=strength)
    preserver.attach(optimizer)
    for inputs in tasks:
        for _ in range(2):
            for rows in torch.randperm(1200).split(20):
                optimizer.zero_grad()
                cross_entropy(model(inputs[rows]), y[rows]).backward()
                optimizer.step()
        with torch.no_grad(), preserver.observe():
            model(inputs[train])
        preserver.consolidate()
    return [accuracy(model, inputs) for inputs in tasks]


# %%
# λ = 0 is plain training. The horizontal axis is logarithmic above 0.1.

strengths = [0.0, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0]
old, new = zip(*(learn(strength) for strength in strengths), strict=True)

figure, axes = plt.subplots(figsize=(5, 3.2), layout="constrained")
axes.plot(strengths, old, marker="o", label="first task")
axes.plot(strengths, new, marker="o", label="second task")
axes.set_xscale("symlog", linthresh=0.1)
axes.set(xlabel="strength λ", ylabel="test accuracy (%)")
axes.legend()
