"""Time and memory of a step on wide layers, against the bare backward passes.

    python benchmarks/factored.py [--quick]

One thread, float32, 20 old tasks, the engine "loop" with Decomposed(strength=0.5). "bare" makes the
same forward and backward calls and nothing else. Batches have 20 samples, or 4 sequences of 32
tokens. Extra memory is how far the peak of a new process rises above its peak with bare passes.
"""

from __future__ import annotations

import one_thread  # noqa: F401  # isort: skip (before any library starts its thread pool)

import multiprocessing
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import torch
from timing import Table, in_turns, milliseconds, parser
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import gradproj as gp
from gradproj.adapters.torch import Projector

# Name to the targets: the highest ratio, and the highest extra memory in MB.
TARGETS = {
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


def steps(name: str, tasks: int) -> dict[str, Callable[[], object]]:
    model, draw = build(name)
    inputs = [draw() for _ in range(tasks + 1)]
    new, *old = [(x, torch.randint(10, (len(x),))) for x in inputs]
    projector = Projector(model, gp.Decomposed(strength=0.5), engine="loop")

    def bare() -> None:
        for batch in (*old, new):
            loss(model, *batch).backward()  # type: ignore[no-untyped-call]

    def step() -> None:
        model.zero_grad()
        projector.backward_batches(loss, new, old)

    return {"bare": bare, "step": step}


def measured(name: str, tasks: int, seconds: float) -> tuple[float, float, float]:
    """Return the ratio of a step to bare passes, its spread, and the time of bare passes."""
    turns = in_turns(steps(name, tasks), seconds)
    return turns.ratio("step", "bare"), turns.spread(["step"], "bare"), turns.seconds("bare")


def peak() -> float:
    """Return the highest memory of this process so far, in MB (Linux only)."""
    # Not ru_maxrss, which a new process inherits from the one that started it.
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024


def extra_memory(name: str, tasks: int) -> float:
    """Return how far the peak of steps is above that of bare passes, in MB."""
    functions = steps(name, tasks)
    for _ in range(2):
        functions["bare"]()
    before = peak()
    for _ in range(3):
        functions["step"]()
    return peak() - before


def main() -> None:
    options = parser(__doc__).parse_args()
    tasks, seconds = (2, 0.1) if options.quick else (20, 30.0)
    table = Table(
        f"A step over its bare backward passes, T = {tasks}",
        ("ratio", "target", "spread", "bare", "extra MB", "target MB"),
    )
    # A process per measurement: the speed of bare passes depends on what was allocated before.
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        for name, (target, limit) in list(TARGETS.items())[: 1 if options.quick else None]:
            ratio, spread, bare = pool.apply(measured, (name, tasks, seconds))
            memory = pool.apply(extra_memory, (name, tasks))
            cells = f"{max(memory, 0.0):.0f}", None if limit is None else f"{limit}"
            table.row(name, ratio, target, spread, milliseconds(bare), *cells)


if __name__ == "__main__":
    main()
