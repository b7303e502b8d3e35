"""
The price of a projection
=========================

Four old tasks, and a new gradient that turns from agreeing with them to opposing them. A projection
protects the old tasks and gives up a part of the progress on the new one. Methods differ in how
much.
"""

import matplotlib.pyplot as plt
import numpy as np

import gradproj as gp

rng = np.random.default_rng(0)
G = np.ones(12) + rng.standard_normal((4, 12))  # old gradients with a common direction
shared = G.mean(axis=0) / np.linalg.norm(G.mean(axis=0))
other = rng.standard_normal(12)
other -= (other @ shared) * shared
other /= np.linalg.norm(other)

# %%
# At 0 degrees the new gradient is the common direction of the old tasks. At 90 degrees it has
# nothing in common with it, and at 180 degrees it is the opposite. The progress on the new task, to
# first order, is the inner product of the new gradient and the update.

angles = np.linspace(0, 180, 61)
methods = {"GEM": gp.GEM(), "A-GEM": gp.AGEM(), "Decomposed": gp.Decomposed()}
progress = {name: [] for name in methods}
worst = {name: [] for name in methods}
for angle in np.radians(angles):
    g = np.cos(angle) * shared + np.sin(angle) * other
    for name, method in methods.items():
        w = gp.project(g, G, method)
        progress[name].append(g @ w)
        worst[name].append(min(G @ w))

# %%
# A-GEM protects the mean of the old tasks, so it gives up least, but single old tasks get worse
# (right, below 0). GEM protects each of them. Decomposed also removes the directions in which the
# old tasks differ: it gives up more, and all old tasks gain the same.

figure, (left, right) = plt.subplots(1, 2, figsize=(8, 3.2), layout="constrained")
for name in methods:
    left.plot(angles, progress[name], label=name)
    right.plot(angles, worst[name], label=name)
left.set_ylabel("progress on the new task")
right.set_ylabel("least progress on an old task")
right.axhline(0, color="grey", lw=0.8)
for axes in (left, right):
    axes.set(xlabel="angle (degrees)", xticks=range(0, 181, 45))
left.legend()
