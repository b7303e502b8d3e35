"""CPU time of the torch adapter's step over the bare backwards it cannot do without.

    python benchmarks/adapter.py

One thread, float32, batches of 10 (new) and 20 (each old task). "bare" makes the same forward and
backward calls and nothing else, not even zero_grad(). Beside it GEM as Avalanche's plugin does it,
on the same batches, where avalanche-lib is installed.
"""

from __future__ import annotations

from collections.abc import Callable

from timing import cpu_seconds  # isort: skip (sets the number of threads)

import avalanche_gem as avalanche
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import gradproj as gp
from gradproj.adapters.torch import Projector
from gradproj.experiments import networks

TASKS = (2, 10, 20)
BARS = {"MLP": 1.5, "ResNet18": 1.15}


def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return cross_entropy(model(x), y)


def draw(shape: tuple[int, ...], count: int) -> tuple[Tensor, Tensor]:
    return torch.randn(count, *shape), torch.randint(10, (count,))


def steps(model: nn.Module, shape: tuple[int, ...], tasks: int) -> dict[str, Callable[[], None]]:
    new, old = draw(shape, 10), [draw(shape, 20) for _ in range(tasks)]

    def bare() -> None:
        for batch in (*old, new):
            loss(model, *batch).backward()  # type: ignore[no-untyped-call]

    def adapter(method: gp.Method, engine: str) -> Callable[[], None]:
        projector = Projector(model, method, engine=engine)
        return lambda: projector.backward_batches(loss, new, old)

    found = {
        "bare": bare,
        "Decomposed": adapter(gp.Decomposed(strength=0.5), "loop"),
        "GEM": adapter(gp.GEM(0.5), "loop"),
    }
    if shape == (1, 28, 28):
        found["vmap"] = adapter(gp.Decomposed(strength=0.5), "vmap")
    if avalanche.installed():
        theirs = avalanche.GEM(model, loss)
        for batch in old:
            theirs.remember(*batch)
        found["Avalanche GEM"] = lambda: theirs.backward(new)
    return found


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    names = ("Decomposed", "GEM", "vmap", "Avalanche GEM")
    print("step over the bare backwards, CPU time, one thread (vmap: all old tasks at once)")
    print(f"{'network':10}{'T':>4}{'bare ms':>10}", *(f"{name:>14}" for name in names), "   bar")
    for network, name, shape in (
        ("MLP", "mlp", (1, 28, 28)),
        ("ResNet18", "resnet18-small", (3, 32, 32)),
    ):
        model = networks.build(name, outputs=10, input_shape=shape, seed=0)
        for tasks in TASKS:
            times = cpu_seconds(steps(model, shape, tasks), seconds=4.0)
            cells = [f"{times[n] / times['bare']:.2f}" if n in times else "–" for n in names]
            print(
                f"{network:10}{tasks:>4}{times['bare'] * 1e3:>10.1f}",
                *(f"{cell:>14}" for cell in cells),
                f"{BARS[network]:>6}",
                flush=True,
            )
    if not avalanche.installed():
        print(avalanche.MISSING)


if __name__ == "__main__":
    main()
