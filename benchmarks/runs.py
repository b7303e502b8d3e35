"""CPU time of whole training runs over that of their gradients alone.

    python benchmarks/runs.py

MNIST permutations where MNIST is at hand (`gradproj data where` says where it is looked for), else
permuted digits. One thread, training only, all tasks: ours and GEM as their presets run them, and
GEM as Avalanche's plugin does it on as many memory samples a step. "gradients" makes the same
forward and backward calls, one after the other, and nothing else.
"""

from __future__ import annotations

import time

import timing  # noqa: F401  # isort: skip (sets the number of threads)

import avalanche_gem as avalanche
import torch
from torch.nn.functional import cross_entropy

from gradproj.experiments import benchmarks, methods, presets
from gradproj.experiments.data import DataError
from gradproj.experiments.learner import Learner, Setup
from gradproj.experiments.runner import stream_options
from gradproj.experiments.streams import Stream, Task


def stream_at_hand() -> tuple[str, Stream]:
    config = presets.find("mnist-permutations/ours")
    try:
        options = stream_options(config)
        return config.benchmark, benchmarks.build(config.benchmark, download=False, **options)
    except DataError:
        config = presets.find("permuted-digits/ours")
        return config.benchmark, benchmarks.build(config.benchmark, **stream_options(config))


def learner(stream: Stream, preset: str) -> Learner:
    config = presets.find(preset)
    return methods.find(config.method)(Setup(config, stream))


class Gradients:
    """All backward calls of a run with a memory batch of 20, and nothing else."""

    def __init__(self, stream: Stream, preset: str) -> None:
        self.inner = learner(stream, preset)
        self.current = 0

    def begin_task(self, task: Task) -> None:
        self.current = task.index
        self.old = [other.train() for other in self.inner.stream.tasks[: task.index]]

    def observe(self, task: Task, x: torch.Tensor, y: torch.Tensor) -> None:
        for batch in (*((a[:20], b[:20]) for a, b in self.old), (x, y)):
            loss = self.inner.loss(self.inner.model, *batch, self.inner.mask(task))
            loss.backward()  # type: ignore[no-untyped-call]

    def end_task(self, task: Task) -> None:
        del task


class Avalanche(Gradients):
    """The same, stepping with Avalanche's plugin."""

    def __init__(self, stream: Stream, preset: str) -> None:
        super().__init__(stream, preset)
        self.gem = avalanche.GEM(self.inner.model, lambda model, x, y: cross_entropy(model(x), y))

    def begin_task(self, task: Task) -> None:
        del task

    def observe(self, task: Task, x: torch.Tensor, y: torch.Tensor) -> None:
        del task
        self.gem.step((x, y))

    def end_task(self, task: Task) -> None:
        x, y = task.train()
        self.gem.remember(x[:20], y[:20])


def seconds(stream: Stream, job: Learner | Gradients, batch: int = 10) -> float:
    """CPU time of one pass over all tasks."""
    total = 0.0
    for task in stream.tasks:
        x, y = task.train()
        order = torch.randperm(len(x), generator=torch.Generator().manual_seed(task.index))
        start = time.process_time()
        job.current = task.index
        job.begin_task(task)
        for rows in order.split(batch):
            job.observe(task, x[rows], y[rows])
        job.end_task(task)
        total += time.process_time() - start
    return total


def main() -> None:
    torch.set_num_threads(1)
    name, stream = stream_at_hand()
    jobs: dict[str, Learner | Gradients] = {
        "gradients": Gradients(stream, f"{name}/ours"),
        "ours": learner(stream, f"{name}/ours"),
        "GEM": learner(stream, f"{name}/gem"),
    }
    if avalanche.installed():
        jobs["Avalanche GEM"] = Avalanche(stream, f"{name}/gem")
    print(f"whole training runs on {name}, {len(stream.tasks)} tasks, CPU time, one thread")
    times = {label: seconds(stream, job) for label, job in jobs.items()}
    for label, value in times.items():
        print(f"{label:16}{value:>8.1f} s{value / times['gradients']:>8.2f}")
    if not avalanche.installed():
        print(avalanche.MISSING)


if __name__ == "__main__":
    main()
