"""20,000 steps with growing tasks: memory and the time of a step should not drift.

    python benchmarks/soak.py

Prints the median step time of the last quarter over that of the first, for each number of old
tasks, and how much the process has grown.
"""

from __future__ import annotations

import gc
import resource
import time
from statistics import median

import timing  # noqa: F401  # isort: skip (sets the number of threads)

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import gradproj as gp
from gradproj.adapters.torch import EpisodicMemory, Projector

STEPS, CYCLES, TASKS = 20_000, 20, 10


def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return cross_entropy(model(x), y)


def main() -> None:
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    projector = Projector(model, gp.Decomposed(rank=3, strength=0.1), engine="loop")
    x, y = torch.randn(2000, 64), torch.randint(10, (2000,))
    times: dict[int, list[float]] = {tasks: [] for tasks in range(TASKS)}
    peaks = []
    for cycle in range(CYCLES):
        memory = EpisodicMemory(32, "reservoir", seed=cycle)
        model[2] = nn.Linear(64, 10)  # the buffer is laid out anew, and the old one let go
        optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
        for step in range(STEPS // CYCLES):
            task = step * TASKS * CYCLES // STEPS
            batch = torch.randint(2000, (10,))
            start = time.process_time()
            old = [memory.sample(t, 10) for t in memory.tasks if t != task]
            projector.backward_batches(loss, (x[batch], y[batch]), old)
            optimizer.step()
            memory.add(task, x[batch], y[batch])
            times[task].append(time.process_time() - start)
        gc.collect()
        peaks.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
    quarter = STEPS // TASKS // 4
    print(f"{STEPS} steps: time of a step, last quarter over first, by number of old tasks")
    for tasks, each in times.items():
        print(f"T = {tasks:<3}{median(each[-quarter:]) / median(each[:quarter]):>6.2f}")
    print(f"peak memory after the second cycle: {peaks[-1] - peaks[1]:+.1f} MiB")


if __name__ == "__main__":
    main()
