"""
How much a projection changes the gradient
==========================================

The new gradient conflicts with old gradients more and more. Each method changes it as little as its
constraints allow.
"""

import matplotlib.pyplot as plt
import numpy as np

import gradproj as gp

rng = np.random.default_rng(0)
G = rng.standard_normal((5, 1000))
noise = rng.standard_normal(1000)

# %%
# With ``conflict=0`` the new gradient is independent of the old ones. With larger values it points
# against their mean.

conflicts = np.linspace(0, 2, 21)
methods = {"GEM": gp.GEM(), "A-GEM": gp.AGEM(), "Decomposed": gp.Decomposed()}
changes = {name: [] for name in methods}
for conflict in conflicts:
    g = noise - conflict * G.mean(axis=0)
    for name, method in methods.items():
        w = gp.project(g, G, method)
        changes[name].append(np.linalg.norm(w - g) / np.linalg.norm(g))

# %%
# A-GEM has one constraint and changes the gradient least. Decomposed also removes the part along
# which the old tasks differ, so it changes a gradient that has no conflict too.

figure, axes = plt.subplots(figsize=(5, 3.2), layout="constrained")
for name, values in changes.items():
    axes.plot(conflicts, values, label=name)
axes.set(xlabel="conflict", ylabel="‖w − g‖ / ‖g‖")
axes.legend()
