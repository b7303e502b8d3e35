"""Where the time of one training step goes, at the last task of a benchmark.

    python benchmarks/steps.py

MNIST permutations and Split CIFAR-100 with ours, as their presets run them, where the data are at
hand (`gradproj data where`), else permuted and split digits. One thread; the median over steps.
"""

from __future__ import annotations

import timing  # noqa: F401  # isort: skip (sets the number of threads)

import time
from collections import defaultdict
from collections.abc import Callable
from statistics import median
from typing import Any

import torch

from gradproj.adapters.torch import engines
from gradproj.experiments import benchmarks, methods, presets
from gradproj.experiments.data import DataError
from gradproj.experiments.learner import Setup
from gradproj.experiments.methods.ours import Ours
from gradproj.experiments.runner import stream_options

PARTS = ("memory batches", "old gradients", "new gradient", "products", "small solve", "combine")
PARTS += ("optimizer", "remember", "rest")


def at_last_task(preset: str, substitute: str) -> tuple[str, Ours]:
    """Build the learner of a preset as it is when its last task begins."""
    config = presets.find(preset)
    try:
        stream = benchmarks.build(config.benchmark, download=False, **stream_options(config))
    except DataError:
        preset, config = substitute, presets.find(substitute)
        stream = benchmarks.build(config.benchmark, **stream_options(config))
    learner = methods.find(config.method)(Setup(config, stream))
    assert isinstance(learner, Ours)
    *old, last = stream.tasks
    for task in old:
        learner.memory.add(task.index, *task.train())  # type: ignore[union-attr]
    learner.current = last.index
    learner.begin_task(last)
    return preset, learner


class Clock:
    """Adds up the time that is spent inside some functions, but not in others among them."""

    def __init__(self) -> None:
        self.spent: dict[str, float] = defaultdict(float)
        self._inside = 0.0

    def watch(self, owner: Any, name: str, part: str | Callable[..., str]) -> None:
        """Count the calls of a function to a part, or to the one that its arguments name."""
        function = getattr(owner, name)

        def timed(*args: Any, **kwargs: Any) -> Any:
            outside, self._inside = self._inside, 0.0
            start = time.perf_counter()
            result = function(*args, **kwargs)
            if hasattr(result, "__next__"):
                result = list(result)
            total = time.perf_counter() - start
            self.spent[part if isinstance(part, str) else part(*args)] += total - self._inside
            self._inside = outside + total
            return result

        setattr(owner, name, timed)


def main() -> None:
    torch.set_num_threads(1)
    vectorised = engines.vectorised
    for preset, substitute, steps in (
        ("mnist-permutations/ours", "permuted-digits/ours", 60),
        ("split-cifar100/ours", "split-digits/ours", 6),
    ):
        preset, learner = at_last_task(preset, substitute)
        projector, clock = learner.projector, Clock()
        clock.watch(learner, "old_batches", "memory batches")
        clock.watch(engines, "vectorised", "old gradients")
        clock.watch(projector, "_run", lambda _, row: "old gradients" if row else "new gradient")
        clock.watch(projector._recorder, "write", "old gradients")
        clock.watch(projector._recorder.gradients, "measure", "products")
        clock.watch(projector, "_solve", "small solve")
        clock.watch(projector._recorder.gradients, "combine", "combine")
        clock.watch(learner.optimizer, "step", "optimizer")
        clock.watch(learner.memory, "add", "remember")
        task = learner.stream.tasks[-1]
        x, y = task.train()
        found: dict[str, list[float]] = defaultdict(list)
        for rows in torch.arange(len(x)).split(learner.config.batch)[: steps + 2]:
            clock.spent.clear()
            start = time.perf_counter()
            learner.observe(task, x[rows], y[rows])
            total = time.perf_counter() - start
            clock.spent["rest"] = total - sum(clock.spent.values())
            for part in PARTS:
                found[part].append(clock.spent[part])
            found["step"].append(total)
        engines.vectorised = vectorised
        times = {part: median(values[2:]) * 1e3 for part, values in found.items()}
        print(f"{preset}, task {task.index + 1}, engine {projector.engine}, one step")
        for part in (*PARTS, "step"):
            print(f"  {part:16}{times[part]:>10.2f} ms{times[part] / times['step']:>8.1%}")


if __name__ == "__main__":
    main()
