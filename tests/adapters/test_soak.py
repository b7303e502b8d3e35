"""20,000 steps with growing tasks: memory and the time of a step do not drift."""

import gc
import time
from pathlib import Path
from statistics import median

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch_reference import mlp

import gradproj as gp
from gradproj.adapters.torch import EpisodicMemory, Projector

STEPS, CYCLES, TASKS = 20_000, 20, 10


def loss(model, x, y):
    return cross_entropy(model(x), y)


def resident_megabytes():
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 2**20


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads the memory from /proc")
def test_memory_and_step_time_do_not_drift(capsys):
    model = mlp(64, 64, 10)
    projector = Projector(model, gp.Decomposed(rank=3, strength=0.1), engine="loop")
    x, y = torch.randn(2000, 64), torch.randint(10, (2000,))
    times = {tasks: [] for tasks in range(TASKS)}
    memory_after = []
    for cycle in range(CYCLES):
        memory = EpisodicMemory(32, "reservoir", seed=cycle)
        model[2] = nn.Linear(64, 10)  # the buffer is laid out anew, and the old one let go
        optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
        for step in range(STEPS // CYCLES):
            task = step * TASKS * CYCLES // STEPS
            batch = torch.randint(2000, (10,))
            start = time.process_time()
            old = [memory.sample(t, 10) for t in memory.tasks if t < task]
            projector.backward_batches(loss, (x[batch], y[batch]), old)
            optimizer.step()
            memory.add(task, x[batch], y[batch])
            times[task].append(time.process_time() - start)
        gc.collect()
        memory_after.append(resident_megabytes())
    per_cycle = STEPS // CYCLES // TASKS
    drift = {
        task: median(each[-5 * per_cycle :]) / median(each[: 5 * per_cycle])
        for task, each in times.items()
    }
    growth = memory_after[-1] - memory_after[1]
    with capsys.disabled():
        ratios = " ".join(f"T={task} {ratio:.2f}" for task, ratio in drift.items())
        print(f"\nlast over first quarter of {STEPS} steps: {ratios}; memory {growth:+.1f} MiB")
    assert growth < 4
    # The machine itself drifts; what grows with the steps would be far beyond this.
    assert median(drift.values()) < 1.25
