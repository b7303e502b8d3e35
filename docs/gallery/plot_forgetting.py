"""
Five tasks in sequence
======================

The accuracy on the first task while four more are learned: with plain training, with
:class:`~gradproj.adapters.torch.Preserver` and no stored sample, and with
:class:`~gradproj.adapters.torch.Projector` and 50 stored samples per task.
"""

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits
from torch.nn.functional import cross_entropy

from gradproj.adapters.torch import EpisodicMemory, Preserver, Projector

torch.set_num_threads(1)
x, y = (torch.tensor(part) for part in load_digits(return_X_y=True))
x = x.float() / 16
orders = [torch.randperm(64, generator=torch.Generator().manual_seed(t)) for t in range(5)]


def loss(model, x, y):
    return cross_entropy(model(x), y)


def learn(kind):
    """Return the test accuracy on the first task, several times per task."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 100), torch.nn.ReLU(), torch.nn.Linear(100, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    projector, memory = Projector(model), EpisodicMemory(per_task=50)
    preserver = Preserver(model, strength=3.0)
    if kind == "Preserver":
        preserver.attach(optimizer)
    curve = []
    for task, order in enumerate(orders):
        inputs = x[:, order]
        for step, rows in enumerate(torch.randperm(1200).split(20)):
            batch = inputs[rows], y[rows]
            old = [memory.sample(t, 20) for t in range(task)] if kind == "Projector" else []
            optimizer.zero_grad()
            projector.backward_batches(loss, batch, old)
            optimizer.step()
            memory.add(task, *batch)
            if step % 6 == 5:
                with torch.no_grad():
                    right = model(x[1200:, orders[0]]).argmax(1) == y[1200:]
                curve.append(100 * float(right.float().mean()))
        with torch.no_grad(), preserver.observe():
            model(inputs[:1200])
        preserver.consolidate()
    return curve


# %%
# Dotted lines mark where a new task starts.

figure, axes = plt.subplots(figsize=(6, 3.4), layout="constrained")
for kind in ("plain training", "Preserver", "Projector"):
    curve = learn(kind)
    axes.plot([(i + 1) * len(orders) / len(curve) for i in range(len(curve))], curve, label=kind)
for task in range(1, len(orders)):
    axes.axvline(task, color="grey", ls=":", lw=0.8)
axes.set(xlabel="tasks learned", ylabel="accuracy on the first task (%)", ylim=(0, 100))
axes.legend(loc="lower left")
