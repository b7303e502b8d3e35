"""CPU time of whole training runs, as a ratio to that of their gradients alone.

    python benchmarks/runs.py [--quick]

MNIST permutations if MNIST is on this machine (`gradproj data where` shows the folder), else
permuted digits. One thread, training only, all tasks. "ours" and "GEM" run as their presets.
"Avalanche GEM" is GEM as Avalanche's plugin computes it, with the same number of memory samples per
step; it needs avalanche-lib. "gradients" makes the same forward and backward calls, one after the
other, and nothing else. The runs advance in turns, one task each.
"""

from __future__ import annotations

import one_thread  # noqa: F401  # isort: skip (before any library starts its thread pool)

import time

import avalanche_gem as avalanche
import torch
from learners import learner, stream_at_hand
from timing import EMPTY, Table, parser
from torch.nn.functional import cross_entropy

from gradproj.experiments.methods.learner import Learner
from gradproj.experiments.streams import Stream, Task

LABELS = ("gradients", "ours", "GEM", "Avalanche GEM")


class Gradients:
    """All backward calls of a run with memory batches of 20 samples, and nothing else."""

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
    """The same run, with the steps of Avalanche's plugin."""

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


def seconds(task: Task, job: Learner | Gradients, batch: int = 10) -> float:
    """Train on one task, and return the CPU time."""
    x, y = task.train()
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(task.index))
    start = time.process_time()
    job.current = task.index
    job.begin_task(task)
    for rows in order.split(batch):
        job.observe(task, x[rows], y[rows])
    job.end_task(task)
    return time.process_time() - start


def main() -> None:
    options = parser(__doc__).parse_args()
    smallest = {"tasks": 3, "samples": 100} if options.quick else None
    name, stream = stream_at_hand("mnist-permutations", "permuted-digits", smallest)
    jobs: dict[str, Learner | Gradients] = {
        "gradients": Gradients(stream, f"{name}/ours"),
        "ours": learner(stream, f"{name}/ours"),
        "GEM": learner(stream, f"{name}/gem"),
    }
    if avalanche.installed():
        jobs["Avalanche GEM"] = Avalanche(stream, f"{name}/gem")
    times = dict.fromkeys(jobs, 0.0)
    for task in stream.tasks:
        for label, job in jobs.items():
            times[label] += seconds(task, job)
    table = Table(
        f"CPU time of training on {name}, {len(stream.tasks)} tasks, over its gradients alone",
        ("ratio", "time"),
    )
    for label in LABELS:
        if label in times:
            table.row(label, times[label] / times["gradients"], f"{times[label]:.2f} s")
        else:
            table.row(label, EMPTY, EMPTY)
    if not avalanche.installed():
        print(f"\n{avalanche.MISSING}")


if __name__ == "__main__":
    main()
