"""Time and memory of steps on wide layers, over the bare backward passes.

    python benchmarks/factored.py [--quick]

T = 20 old tasks, one thread, float32, the engine "loop" with Decomposed(strength=0.5). "bare" runs
the same T + 1 forward and backward passes and nothing else. Times are medians of interleaved calls,
as CPU time. Extra memory is how far the peak of a new process rises above its peak with bare
passes.
"""

from __future__ import annotations

import argparse
import multiprocessing
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

from timing import cpu_seconds  # isort: skip (sets the number of threads)

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import gradproj as gp
from gradproj.adapters.torch import Projector

TASKS = 20
# Name to the highest ratio and the highest extra memory in MB that are accepted.
BARS = {
    "MLP 784-2000-2000-10": (0.85, 100),
    "BERT-like": (1.10, 400),
    "MLP 784-100-100-10": (1.15, None),
}


class Encoder(nn.Module):
    """A transformer of BERT's shape: 4 layers of width 256 and a vocabulary of 30,522."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(30_522, 256, padding_idx=0)
        self.positions = nn.Embedding(128, 256)
        layer = nn.TransformerEncoderLayer(256, 4, 1024, dropout=0.0, batch_first=True)
        self.body = nn.TransformerEncoder(layer, 4)
        self.head = nn.Linear(256, 10)

    def forward(self, x: Tensor) -> Tensor:
        h = self.tokens(x) + self.positions(torch.arange(x.shape[1]))
        found: Tensor = self.head(self.body(h)[:, 0])
        return found


def mlp(width: int) -> nn.Module:
    sizes = (784, width, width)
    hidden = [nn.Sequential(nn.Linear(a, b), nn.ReLU()) for a, b in pairwise(sizes)]
    return nn.Sequential(*hidden, nn.Linear(width, 10))


def build(name: str) -> tuple[nn.Module, Callable[[], Tensor]]:
    """Return a model and a function that draws the inputs of a batch."""
    torch.manual_seed(0)
    if name == "BERT-like":
        return Encoder(), lambda: torch.randint(1, 30_522, (4, 32))
    return mlp(int(name.split("-")[1])), lambda: torch.randn(20, 784)


def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return cross_entropy(model(x), y)


def steps(name: str) -> dict[str, Callable[[], object]]:
    model, draw = build(name)
    batches = [(x, torch.randint(10, (len(x),))) for x in (draw() for _ in range(TASKS + 1))]
    *old, new = batches
    projector = Projector(model, gp.Decomposed(strength=0.5))

    def bare() -> None:
        for batch in batches:
            loss(model, *batch).backward()  # type: ignore[no-untyped-call]

    def step() -> None:
        projector.backward_batches(loss, new, old)

    def cleared() -> None:
        model.zero_grad()
        step()

    return {"bare": bare, "step": cleared}


def peak() -> float:
    """Return the highest memory of this process so far, in MB (Linux only)."""
    # Not ru_maxrss, which a new process inherits from the one that started it.
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024


def extra_memory(name: str) -> float:
    """Return how far a step's peak is above that of bare passes, in MB."""
    torch.set_num_threads(1)
    functions = steps(name)
    for _ in range(2):
        functions["bare"]()
    before = peak()
    for _ in range(3):
        functions["step"]()
    return peak() - before


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="measure each model for a second")
    seconds = 1.0 if parser.parse_args().quick else 20.0
    torch.set_num_threads(1)
    print(f"{'network':24}{'bare ms':>9}{'ratio':>8}{'bar':>6}{'extra MB':>10}{'bar':>6}")
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        for name, (bar, memory_bar) in BARS.items():
            memory = pool.apply(extra_memory, (name,))
            times = cpu_seconds(steps(name), seconds=seconds)
            print(
                f"{name:24}{times['bare'] * 1e3:>9.1f}{times['step'] / times['bare']:>8.2f}"
                f"{bar:>6.2f}{memory:>10.0f}{memory_bar or '–':>6}",
                flush=True,
            )


if __name__ == "__main__":
    main()
