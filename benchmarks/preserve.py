"""CPU time of a training step without stored samples, as a ratio to a step of plain SGD.

    python benchmarks/preserve.py [--quick]

One thread, float32, batches of 10 samples of the new task, and of 20 samples of each old task for
the methods that store some. All steps call zero_grad() and optimizer.step(). "replay" is one
backward pass over all these samples. Preserver keeps the answers of T tasks; its factors are those
of random inputs. "rank=64" keeps 64 directions per layer.

The targets are close to or below the cost of the products alone. On an AMD EPYC with AVX-512, in
float32, the best times of single products are: MLP, 61 µs for the first layer's A M, 17 µs for its
Dᵀ (A M) and 22 µs for the second layer's G M, together 0.5 of a plain step of 210 µs. ResNet18,
2.4 GFLOP for all G M at 265 GFLOP/s, which is 9 ms or 0.3 of a plain step of 29 ms.
"""

from __future__ import annotations

import one_thread  # noqa: F401  # isort: skip (before any library starts its thread pool)

from collections.abc import Callable

import torch
from adapter import NETWORKS, draw, loss
from timing import Table, in_turns, milliseconds, parser
from torch import nn

import gradproj as gp
from gradproj.adapters.torch import Preserver, Projector
from gradproj.experiments import networks

TARGETS = {"MLP": 1.5, "ResNet18": 1.15}
COLUMNS = ("Preserver", "rank=64", "replay", "Projector")


def steps(
    build: Callable[[], nn.Module], shape: tuple[int, ...], tasks: int
) -> dict[str, Callable[[], object]]:
    """Return one function per column, and "plain"."""
    new, old = draw(shape, 10), [draw(shape, 20) for _ in range(tasks)]
    everything = tuple(torch.cat(parts) for parts in zip(new, *old, strict=True))

    def step(model: nn.Module, backward: Callable[[], object]) -> Callable[[], object]:
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

        def run() -> None:
            optimizer.zero_grad()
            backward()
            optimizer.step()

        return run

    def plain(model: nn.Module) -> None:
        loss(model, *new).backward()  # type: ignore[no-untyped-call]

    def replay(model: nn.Module) -> None:
        loss(model, *everything).backward()  # type: ignore[no-untyped-call]

    def preserved(model: nn.Module, rank: int | None) -> Callable[[], object]:
        preserver = Preserver(model, rank=rank)
        for _ in range(tasks):
            with torch.no_grad(), preserver.observe():
                model(draw(shape, 100)[0])
            preserver.consolidate()

        def backward() -> None:
            plain(model)
            preserver.apply()

        return backward

    def projected(model: nn.Module) -> Callable[[], object]:
        projector = Projector(model, gp.Decomposed(strength=0.5))
        return lambda: projector.backward_batches(loss, new, old)

    models = {name: build() for name in ("plain", *COLUMNS)}
    made: dict[str, Callable[[], object]] = {
        "plain": lambda: plain(models["plain"]),
        "Preserver": preserved(models["Preserver"], None),
        "rank=64": preserved(models["rank=64"], 64),
        "replay": lambda: replay(models["replay"]),
        "Projector": projected(models["Projector"]),
    }
    return {name: step(models[name], backward) for name, backward in made.items()}


def main() -> None:
    options = parser(__doc__).parse_args()
    torch.manual_seed(0)
    table = Table(
        "CPU time of a step over one of plain SGD",
        (*COLUMNS, "target", "spread", "plain"),
        width=10,
    )
    for label, (name, shape) in NETWORKS.items():

        def build(name: str = name, shape: tuple[int, ...] = shape) -> nn.Module:
            return networks.build(name, outputs=10, input_shape=shape, seed=0)

        for tasks in (2,) if options.quick else (5, 20, 50):
            turns = in_turns(steps(build, shape, tasks), 0.1 if options.quick else 8.0, least=3)
            table.row(
                f"{label} T = {tasks}",
                *(turns.ratio(name, "plain") for name in COLUMNS),
                TARGETS[label],
                turns.spread(("Preserver",), "plain"),
                milliseconds(turns.seconds("plain")),
            )


if __name__ == "__main__":
    main()
