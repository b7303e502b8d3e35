"""Wall time of a step with the default number of threads, and with one thread.

    python benchmarks/threads.py [--quick]

NumPy's OpenBLAS and torch each keep a pool of threads, and a step alternates between the two. If
both pools use all cores, they wait for each other. Each setting runs in its own process, because
the pools are sized when the libraries are loaded. "ratio" is the step of the torch adapter over its
bare backward passes.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from argparse import SUPPRESS
from functools import partial

from timing import Table, in_turns, milliseconds, parser

POOLS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


def measure(title: str, *, quick: bool) -> None:
    """Print the table of the process's own setting."""
    import torch
    from torch.nn.functional import cross_entropy

    import gradproj as gp
    from gradproj.adapters.torch import Projector
    from gradproj.experiments import networks

    model = networks.build("mlp", outputs=10, input_shape=(1, 28, 28))
    projector = Projector(model, gp.Decomposed(rank=5, strength=0.5))

    def loss(model: torch.nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return cross_entropy(model(x), y)

    def bare(batches: list[tuple[torch.Tensor, ...]]) -> None:
        for batch in batches:
            model.zero_grad()
            loss(model, *batch).backward()  # type: ignore[no-untyped-call]

    def projected(new: tuple[torch.Tensor, ...], old: list[tuple[torch.Tensor, ...]]) -> None:
        model.zero_grad()
        projector.backward_batches(loss, new, old)

    table = Table(title, ("ratio", "spread", "bare", "step"), width=10)
    for tasks in (2,) if quick else (2, 10, 20, 32):
        new, *old = (
            (torch.rand(20, 1, 28, 28), torch.randint(10, (20,))) for _ in range(tasks + 1)
        )
        functions = {
            "bare": partial(bare, [new, *old]),
            "step": partial(projected, new, old),
        }
        turns = in_turns(functions, 0.1 if quick else 1.0, least=3, clock=time.perf_counter)
        table.row(
            f"T = {tasks}",
            turns.ratio("step", "bare"),
            turns.spread(["step"], "bare"),
            milliseconds(turns.seconds("bare")),
            milliseconds(turns.seconds("step")),
        )


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--title", help=SUPPRESS)  # set in the processes that this one starts
    options = arguments.parse_args()
    if options.title:
        measure(options.title, quick=options.quick)
        return
    quick = ["--quick"] if options.quick else []
    for title, setting in (
        ("one thread", dict.fromkeys(POOLS, "1")),
        ("default threads", {}),
    ):
        environment = {k: v for k, v in os.environ.items() if k not in POOLS} | setting
        command = [sys.executable, __file__, "--title", title, *quick]
        subprocess.run(command, env=environment, check=True)


if __name__ == "__main__":
    main()
