"""CPU time of a step of the torch adapter, as a ratio to the bare backward passes.

    python benchmarks/adapter.py [--quick]

One thread, float32, batches of 10 samples (new task) and 20 samples (each old task). "bare" makes
the same forward and backward calls and nothing else, not even zero_grad(). The column "vmap" is
Decomposed with the gradients of all old tasks computed at once. "Avalanche GEM" is GEM as
Avalanche's plugin computes it on the same batches; it needs avalanche-lib.
"""

from __future__ import annotations

import one_thread  # noqa: F401  # isort: skip (before any library starts its thread pool)

from collections.abc import Callable

import avalanche_gem as avalanche
import torch
from timing import Table, in_turns, milliseconds, parser
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import gradproj as gp
from gradproj.adapters.torch import Projector
from gradproj.experiments import networks

NETWORKS = {
    "MLP": ("mlp", (1, 28, 28)),
    "ResNet18": ("resnet18-small", (3, 32, 32)),
}
TARGETS = {"MLP": 1.5, "ResNet18": 1.15}
COLUMNS = ("Decomposed", "GEM", "vmap", "Avalanche GEM")


def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return cross_entropy(model(x), y)


def draw(shape: tuple[int, ...], count: int) -> tuple[Tensor, Tensor]:
    return torch.randn(count, *shape), torch.randint(10, (count,))


def steps(model: nn.Module, shape: tuple[int, ...], tasks: int) -> dict[str, Callable[[], object]]:
    """Return one function per column, and "bare"."""
    new, old = draw(shape, 10), [draw(shape, 20) for _ in range(tasks)]

    def bare() -> None:
        for batch in (*old, new):
            loss(model, *batch).backward()  # type: ignore[no-untyped-call]

    def adapter(method: gp.Method, engine: str) -> Callable[[], object]:
        projector = Projector(model, method, engine=engine)

        def step() -> None:
            model.zero_grad()
            projector.backward_batches(loss, new, old)

        return step

    found: dict[str, Callable[[], object]] = {
        "bare": bare,
        "Decomposed": adapter(gp.Decomposed(strength=0.5), "loop"),
        "GEM": adapter(gp.GEM(0.5), "loop"),
    }
    # torch cannot vectorize batch norm, which updates its running statistics in place.
    if not any(isinstance(module, nn.BatchNorm2d) for module in model.modules()):
        found["vmap"] = adapter(gp.Decomposed(strength=0.5), "vmap")
    if avalanche.installed():
        theirs = avalanche.GEM(model, loss)
        for batch in old:
            theirs.remember(*batch)
        found["Avalanche GEM"] = lambda: theirs.backward(new)
    return found


def main() -> None:
    options = parser(__doc__).parse_args()
    torch.manual_seed(0)
    table = Table(
        "CPU time of a step over its bare backward passes",
        (*COLUMNS, "target", "spread", "bare"),
        width=10,
    )
    for label, (name, shape) in NETWORKS.items():
        model = networks.build(name, outputs=10, input_shape=shape, seed=0)
        for tasks in (2,) if options.quick else (2, 10, 20):
            functions = steps(model, shape, tasks)
            turns = in_turns(functions, 0.1 if options.quick else 4.0, least=3)
            present = [name for name in COLUMNS if name in turns]
            table.row(
                f"{label} T = {tasks}",
                *(turns.ratio(name, "bare") if name in turns else None for name in COLUMNS),
                TARGETS[label],
                turns.spread(present, "bare"),
                milliseconds(turns.seconds("bare")),
            )
    if not avalanche.installed():
        print(f"\n{avalanche.MISSING}")


if __name__ == "__main__":
    main()
