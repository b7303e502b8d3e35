"""Share of each part in the CPU time of one training step, at the last task of a benchmark.

    python benchmarks/steps.py [--quick]

MNIST permutations and Split CIFAR-100 with our method, as their presets run, if the data are on
this machine (`gradproj data where` shows the folder), else permuted and split digits. One thread.

The whole step is `Learner.observe`. Each part is computed a second time on its own, through public
functions only, in the same turn and with the same sizes:

- memory batches: `Learner.old_batches`;
- old gradients, new gradient: bare forward and backward passes. If the step computes all old
  gradients at once by vmap, so does this part;
- inner products, solve, combine: `gp.measure_layers`, `Method.solve` and `gp.combine` on the
  gradients of the same layers as float32 NumPy arrays;
- optimizer, remember: `Optimizer.step` and `EpisodicMemory.add`.

"the rest" is the step minus all parts. It is negative if the step is faster than its parts are on
their own.
"""

from __future__ import annotations

import one_thread  # noqa: F401  # isort: skip (before any library starts its thread pool)

from collections.abc import Callable, Mapping, Sequence
from itertools import cycle
from statistics import median
from typing import Any

import numpy as np
import torch
from learners import learner, stream_at_hand
from timing import Table, in_turns, milliseconds, parser
from torch import Tensor

import gradproj as gp
from gradproj.experiments.methods.learner import Learner
from gradproj.experiments.streams import Stream

Batch = tuple[Tensor, ...]
Arrays = list[np.ndarray]

# Benchmark, its substitute, and the seconds that the turns take.
CASES = (
    ("mnist-permutations", "permuted-digits", 3.0),
    ("split-cifar100", "split-digits", 20.0),
)
# Sizes of the substitutes for --quick; twelve tasks, so that the step uses vmap.
SMALLEST = (
    {"tasks": 12, "samples": 60},
    {"tasks": 5},
)


def at_last_task(stream: Stream, preset: str) -> Any:
    """Build the learner of a preset as it is when the last task begins."""
    built = learner(stream, preset)
    *old, last = stream.tasks
    for task in old:
        built.memory.add(task.index, *task.train())  # type: ignore[attr-defined]
    built.current = last.index
    built.begin_task(last)
    return built


def backward(owner: Learner, batch: Batch) -> None:
    """Run one bare forward and backward pass."""
    owner.loss(owner.model, *batch).backward()  # type: ignore[no-untyped-call]


def at_once(owner: Learner, batches: Sequence[Batch]) -> dict[str, Tensor]:
    """Compute the gradients of several batches by vmap, one row per batch."""
    stacked = tuple(torch.stack(parts) for parts in zip(*batches, strict=True))
    weights = {name: p.detach() for name, p in owner.model.named_parameters()}

    def loss(weights: dict[str, Tensor], *batch: Tensor) -> Tensor:
        def model(x: Tensor) -> Tensor:
            return torch.func.functional_call(owner.model, weights, (x,))

        return owner.loss(model, *batch)  # type: ignore[arg-type]

    axes = (None, *(0 for _ in stacked))
    rows = torch.func.vmap(torch.func.grad(loss), in_dims=axes)(weights, *stacked)
    return dict(rows)


def layer_gradients(
    owner: Learner, layers: Mapping[str, Sequence[str]], batches: Sequence[Batch]
) -> tuple[Arrays, Arrays]:
    """Compute gradients and return, per layer, the last batch's and those of the others.

    The layers are ranges of columns of one array, as in the torch adapter.
    """
    parameters = dict(owner.model.named_parameters())
    members = [[parameters[name] for name in names] for names in layers.values()]
    flat = [p for group in members for p in group]
    rows = []
    for batch in batches:
        parts = torch.autograd.grad(owner.loss(owner.model, *batch), flat)
        rows.append(torch.cat([part.flatten() for part in parts]).numpy())
    stacked = np.stack(rows)
    widths = [sum(p.numel() for p in group) for group in members]
    blocks = np.split(stacked, np.cumsum(widths)[:-1], axis=1)
    return [block[-1] for block in blocks], [block[:-1] for block in blocks]


def parts(owner: Any, engine: str, layers: Mapping[str, Sequence[str]]) -> dict[str, Callable]:
    """Return one function per part of the step; `owner` is a learner of their own."""
    task = owner.stream.tasks[-1]
    x, y = (part[: owner.config.batch] for part in task.train())
    # `.grad` accumulates over the bare passes; at rate 0 the optimizer does not apply it.
    owner.set_rate(0.0)
    new: Batch = (x, y, owner.mask(task))
    old: list[Batch] = list(owner.old_batches())
    g, G = layer_gradients(owner, layers, [*old, new])
    method = owner.projection()
    products = gp.measure_layers(g, G, precise=False)
    coefficients = method.solve(products).coefficients

    def old_gradients() -> None:
        if engine == "vmap":
            at_once(owner, old)
        else:
            for batch in old:
                backward(owner, batch)

    def combine() -> None:
        for g_layer, G_layer, c in zip(g, G, coefficients, strict=True):
            gp.combine(g_layer, G_layer, c, precise=False)

    return {
        "memory batches": lambda: list(owner.old_batches()),
        "old gradients": old_gradients,
        "new gradient": lambda: backward(owner, new),
        "inner products": lambda: gp.measure_layers(g, G, precise=False),
        "solve": lambda: method.solve(products),
        "combine": combine,
        "optimizer": owner.optimizer.step,
        "remember": lambda: owner.memory.add(task.index, x, y),
    }


def print_shares(name: str, stream: Stream, seconds: float) -> None:
    trained, other = (at_last_task(stream, f"{name}/ours") for _ in range(2))
    task = stream.tasks[-1]
    x, y = task.train()
    batches = cycle(torch.arange(len(x)).split(trained.config.batch))

    def step() -> None:
        rows = next(batches)
        trained.observe(task, x[rows], y[rows])

    step()  # chooses the engine
    engine = trained.projector.engine
    functions = parts(other, engine, trained.projector.layers)
    turns = in_turns({"step": step} | functions, seconds, least=3)
    old_tasks = len(stream.tasks) - 1
    table = Table(
        f"{name}: CPU time of one step, {old_tasks} old tasks, engine {engine}",
        ("share", "time"),
    )
    whole = turns.times["step"]
    rest = [
        total - sum(each)
        for total, *each in zip(whole, *map(turns.times.get, functions), strict=True)
    ]
    for part in functions:
        table.row(part, f"{turns.ratio(part, 'step'):.2%}", milliseconds(turns.seconds(part)))
    share = median(r / total for r, total in zip(rest, whole, strict=True))
    table.row("the rest", f"{share:.2%}", milliseconds(median(rest)))
    table.row("step", f"{1:.2%}", milliseconds(turns.seconds("step")))


def main() -> None:
    options = parser(__doc__).parse_args()
    for (wanted, substitute, seconds), smallest in zip(CASES, SMALLEST, strict=True):
        changes = smallest if options.quick else None
        name, stream = stream_at_hand(wanted, substitute, changes)
        print_shares(name, stream, 0.3 if options.quick else seconds)


if __name__ == "__main__":
    main()
