"""Modules that the server of the workers imports once: a worker is a fork with all of them."""

import torch

from gradproj.experiments import methods
from gradproj.experiments.runs import runner

__all__ = ["runner"]

# Finds and imports the modules of all methods.
methods.available()
# The first optimizer of a process imports torch's compiler, which takes 0.7 s of CPU time.
torch.optim.SGD([torch.zeros(1)])
