"""What default threads cost: steps with OpenBLAS and torch on all cores, beside one thread each.

    python benchmarks/threads.py

NumPy's OpenBLAS and torch each keep a pool of threads, and a step goes from one to the other. Where
both pools want the cores, they wait for one another. Each setting runs in a process of its own,
since the pools are sized when the libraries are loaded; wall time, median over steps.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from statistics import median

POOLS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
OLD_TASKS = (2, 10, 20, 32)


def measure() -> None:
    import torch
    from torch.nn.functional import cross_entropy

    import gradproj as gp
    from gradproj.adapters.torch import Projector
    from gradproj.experiments import networks

    model = networks.build("mlp", outputs=10, input_shape=(1, 28, 28))
    projector = Projector(model, gp.Decomposed(rank=5, strength=0.5))

    def loss(model: torch.nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return cross_entropy(model(x), y)

    for tasks in OLD_TASKS:
        new, *old = (
            (torch.rand(20, 1, 28, 28), torch.randint(10, (20,))) for _ in range(tasks + 1)
        )

        def bare(batches: list[tuple[torch.Tensor, ...]] = [new, *old]) -> None:  # noqa: B006
            for batch in batches:
                model.zero_grad()
                loss(model, *batch).backward()  # type: ignore[no-untyped-call]

        functions = [bare, lambda new=new, old=old: projector.backward_batches(loss, new, old)]
        times: list[list[float]] = [[], []]
        for step in range(30):
            for function, spent in zip(functions, times, strict=True):
                start = time.perf_counter()
                function()
                if step >= 5:
                    spent.append(time.perf_counter() - start)
        alone, step = (median(spent) * 1e3 for spent in times)
        print(f"{tasks:>8} old tasks {alone:>8.2f} ms {step:>8.2f} ms {step / alone:>6.2f}")


def main() -> None:
    for threads in ("1", ""):
        environment = {k: v for k, v in os.environ.items() if k not in POOLS}
        environment |= dict.fromkeys(POOLS, threads) if threads else {}
        label = f"{threads or 'default'} threads"
        print(f"{label:<16}   backward alone        step  ratio", flush=True)
        subprocess.run([sys.executable, __file__, "measure"], env=environment, check=True)


if __name__ == "__main__":
    measure() if "measure" in sys.argv else main()
