"""Drift of step time and memory over 20,000 steps with a growing number of old tasks.

    python benchmarks/soak.py [--quick]

Prints, per number of old tasks, the median CPU time of a step in the last quarter of its steps over
that in the first quarter. The steps of one number of old tasks are spread over the whole run: each
cycle starts again with no old task and a new output layer. Then prints how much the peak memory of
the process grew after the second cycle.
"""

from __future__ import annotations

import one_thread  # noqa: F401  # isort: skip (before any library starts its thread pool)

import gc
import resource
import time
from statistics import median

import torch
from timing import Table, parser
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import gradproj as gp
from gradproj.adapters.torch import EpisodicMemory, Projector


def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return cross_entropy(model(x), y)


def train(cycles: int, tasks: int, steps: int) -> tuple[dict[int, list[float]], list[float]]:
    """Train, and return the times of the steps per number of old tasks, and the peaks in MiB.

    Parameters
    ----------
    cycles, tasks, steps : int
        Number of cycles, of tasks per cycle and of steps per task.
    """
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    projector = Projector(model, gp.Decomposed(rank=3, strength=0.1), engine="loop")
    x, y = torch.randn(2000, 64), torch.randint(10, (2000,))
    times: dict[int, list[float]] = {task: [] for task in range(tasks)}
    peaks = []
    for cycle in range(cycles):
        memory = EpisodicMemory(32, "reservoir", seed=cycle)
        # The projector must notice the new layer and release the memory of the old one.
        model[2] = nn.Linear(64, 10)
        optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
        for step in range(tasks * steps):
            task = step // steps
            batch = torch.randint(2000, (10,))
            start = time.process_time()
            old = [memory.sample(t, 10) for t in range(task)]
            optimizer.zero_grad()
            projector.backward_batches(loss, (x[batch], y[batch]), old)
            optimizer.step()
            memory.add(task, x[batch], y[batch])
            times[task].append(time.process_time() - start)
        gc.collect()
        peaks.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
    return times, peaks


def main() -> None:
    options = parser(__doc__).parse_args()
    cycles, tasks, steps = (4, 3, 20) if options.quick else (20, 10, 100)
    times, peaks = train(cycles, tasks, steps)
    title = f"{cycles * tasks * steps:,} steps: CPU time of a step, last quarter over first"
    table = Table(title, ("ratio",))
    for count, each in times.items():
        quarter = len(each) // 4
        table.row(f"T = {count}", median(each[-quarter:]) / median(each[:quarter]))
    print(f"\ngrowth of the peak memory after the second cycle: {peaks[-1] - peaks[1]:+.1f} MiB")


if __name__ == "__main__":
    main()
