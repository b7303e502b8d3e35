"""CPU time of the torch adapter's step over the bare backwards it cannot do without.

    python benchmarks/adapter.py

One thread, float32, batches of 10 (new) and 20 (each old task). "bare" makes the same forward and
backward calls and nothing else, not even zero_grad(). Beside it GEM as Avalanche's plugin does it,
on the same batches, where avalanche-lib is installed.
"""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from timing import cpu_seconds  # isort: skip (sets the number of threads)

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import gradproj as gp
from gradproj.adapters.torch import Projector

TASKS = (2, 10, 20)
BARS = {"MLP": 1.5, "ResNet18": 1.15}


class Residual(nn.Module):
    """Two convolutions and a shortcut."""

    def __init__(self, width: int, out: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(width, out, 3, stride, 1, bias=False),
            nn.BatchNorm2d(out),
            nn.ReLU(),
            nn.Conv2d(out, out, 3, 1, 1, bias=False),
            nn.BatchNorm2d(out),
        )
        self.shortcut = nn.Sequential()
        if stride > 1:
            shrink = nn.Conv2d(width, out, 1, stride, bias=False)
            self.shortcut = nn.Sequential(shrink, nn.BatchNorm2d(out))

    def forward(self, x: Tensor) -> Tensor:
        """Add the two ways."""
        return (self.body(x) + self.shortcut(x)).relu()


def resnet18(width: int = 20) -> nn.Module:
    parts: list[nn.Module] = [nn.Conv2d(3, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width)]
    before = width
    for stage in range(4):
        for stride in (1 if stage == 0 else 2, 1):
            parts.append(Residual(before, width * 2**stage, stride))
            before = width * 2**stage
    return nn.Sequential(*parts, nn.AvgPool2d(4), nn.Flatten(), nn.Linear(before, 10))


def mlp() -> nn.Module:
    layers = [nn.Linear(784, 100), nn.ReLU(), nn.Linear(100, 100), nn.ReLU(), nn.Linear(100, 10)]
    return nn.Sequential(*layers)


def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return cross_entropy(model(x), y)


def draw(shape: tuple[int, ...], count: int) -> tuple[Tensor, Tensor]:
    return torch.randn(count, *shape), torch.randint(10, (count,))


def avalanche_gem(model: nn.Module, new: Any, old: list[Any]) -> Callable[[], None] | None:
    """One step with Avalanche's GEM plugin; None where it is not installed."""
    if importlib.util.find_spec("avalanche") is None:
        return None
    from gradproj.experiments.torchvision_shim import import_torchvision

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import_torchvision()  # which Avalanche imports, and which needs help beside CPU torch
        from avalanche.training.plugins import GEMPlugin
    plugin = GEMPlugin(patterns_per_experience=len(old[0][0]), memory_strength=0.5)
    for task, (x, y) in enumerate(old):
        plugin.memory_x[task], plugin.memory_y[task] = x, y
        plugin.memory_tid[task] = torch.zeros(len(x), dtype=torch.long)
    strategy = SimpleNamespace(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), 0.1),
        device=torch.device("cpu"),
        clock=SimpleNamespace(train_exp_counter=len(old)),
        _criterion=cross_entropy,
    )

    def step() -> None:
        plugin.before_training_iteration(strategy)
        strategy.optimizer.zero_grad()
        loss(model, *new).backward()  # type: ignore[no-untyped-call]
        plugin.after_backward(strategy)

    return step


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
    if shape == (784,):
        found["vmap"] = adapter(gp.Decomposed(strength=0.5), "vmap")
    theirs = avalanche_gem(model, new, old)
    if theirs is not None:
        found["Avalanche GEM"] = theirs
    return found


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    names = ("Decomposed", "GEM", "vmap", "Avalanche GEM")
    print("step over the bare backwards, CPU time, one thread (vmap: all old tasks at once)")
    print(f"{'network':10}{'T':>4}{'bare ms':>10}", *(f"{name:>14}" for name in names), "   bar")
    for network, model, shape in (
        ("MLP", mlp(), (784,)),
        ("ResNet18", resnet18(), (3, 32, 32)),
    ):
        for tasks in TASKS:
            times = cpu_seconds(steps(model, shape, tasks), seconds=4.0)
            cells = [f"{times[n] / times['bare']:.2f}" if n in times else "–" for n in names]
            print(
                f"{network:10}{tasks:>4}{times['bare'] * 1e3:>10.1f}",
                *(f"{cell:>14}" for cell in cells),
                f"{BARS[network]:>6}",
                flush=True,
            )
    if importlib.util.find_spec("avalanche") is None:
        print("Avalanche GEM: avalanche-lib is not installed; pip install avalanche-lib")


if __name__ == "__main__":
    main()
