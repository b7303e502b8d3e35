"""CPU time of the core over the bare products it cannot do without, and beside other libraries.

    python benchmarks/core.py

One thread, float32. Every ratio is against the floor of the same library in the same run:
`G @ G.T`, `G @ g` and `c @ G`; for A-GEM, which needs no `G @ G.T`: `a @ G` and two dot products.
"""

from __future__ import annotations

import importlib.util
import tracemalloc
from collections.abc import Callable
from functools import partial
from itertools import pairwise, product
from typing import Any

from timing import cpu_seconds  # isort: skip (sets the number of threads)

import numpy as np
import torch

import gradproj as gp

SIZES = {"MLP": 89_610, "ResNet18": 1_109_240}
TASKS = (5, 20, 50)
METHODS = {
    "Decomposed": gp.Decomposed(),
    "K=5": gp.Decomposed(rank=5),
    "GEM": gp.GEM(),
    "A-GEM": gp.AGEM(),
    "S-GEM": gp.SGEM(),
}


def resnet_tensors() -> list[int]:
    """Sizes of the 62 parameter tensors of the small ResNet18 with 100 outputs."""
    sizes = [3 * 20 * 9, 20, 20]
    before = 20
    for stage in range(4):
        width = 20 * 2**stage
        for block in range(2):
            sizes += [before * width * 9, width, width, width * width * 9, width, width]
            if block == 0 and stage > 0:
                sizes += [before * width, width, width]
            before = width
    return [*sizes, 160 * 100, 100]


def gradients(T: int, N: int, library: str = "NumPy") -> tuple[Any, Any, Any]:
    """A new gradient that conflicts, old ones with a shared part, and weights for their mean."""
    rng = np.random.default_rng(T)
    shared = rng.standard_normal(N, dtype=np.float32)
    G = rng.standard_normal((T, N), dtype=np.float32) + shared
    g = rng.standard_normal(N, dtype=np.float32) - shared
    arrays = g, G, np.full(T, 1 / T, dtype=np.float32)
    return arrays if library == "NumPy" else tuple(map(torch.from_numpy, arrays))


def floors(g: Any, G: Any, c: Any) -> dict[str, Callable[[], Any]]:
    def whole() -> None:
        G @ G.T, G @ g, c @ G

    def mean() -> None:
        m = c @ G
        m @ m, m @ g, g + m

    return {"floor": whole, "A-GEM floor": mean}


def table_of_methods() -> None:
    print("\nCPU time over the floor (at most 1.25 for Decomposed on ResNet18, 1.5 on MLP, T = 20)")
    print(f"{'':<28}" + "".join(f"{name:>12}" for name in METHODS) + f"{'floor':>12}")
    for library, (network, N), T in product(("NumPy", "torch"), SIZES.items(), TASKS):
        g, G, c = gradients(T, N, library)
        calls = {name: partial(gp.project, g, G, method) for name, method in METHODS.items()}
        seconds = cpu_seconds(floors(g, G, c) | calls, 3.0)
        row = "".join(
            f"{seconds[name] / seconds['A-GEM floor' if name == 'A-GEM' else 'floor']:>12.2f}"
            for name in METHODS
        )
        label = f"{library} {network} T = {T}"
        print(f"{label:<28}{row}{seconds['floor'] * 1e3:>9.2f} ms", flush=True)


def table_of_layers() -> None:
    sizes = resnet_tensors()
    cuts = [slice(a, b) for a, b in pairwise(np.cumsum([0, *sizes]))]
    print(f"\n{len(sizes)} tensors of ResNet18, layerwise over whole-net (at most 2 at T = 20)")
    for library, T in product(("NumPy", "torch"), TASKS):
        g, G, _ = gradients(T, sum(sizes), library)
        layers = [g[cut] for cut in cuts], [G[:, cut] for cut in cuts]
        calls = {
            "whole": partial(gp.project, g, G),
            "layers": partial(gp.project_layers, *layers),
        }
        seconds = cpu_seconds(calls, 3.0)
        print(f"{library} T = {T:<4}{seconds['layers'] / seconds['whole']:>8.2f}")


def table_of_others() -> None:
    print("\nBeside others on the same matrix, CPU time over the floor of torch")
    needed = ("torchjd", "quadprog", "qpsolvers")
    missing = [name for name in needed if not importlib.util.find_spec(name)]
    if missing:
        print(f"not installed: {', '.join(missing)} (`make bench` installs them)")
        return
    import quadprog
    from torchjd.aggregation import DualProj, UPGrad

    def by_quadprog(g: np.ndarray, G: np.ndarray) -> np.ndarray:
        G64 = G.astype(np.float64)
        C, h = G64 @ G64.T, G64 @ g
        v = quadprog.solve_qp(C + 1e-9 * np.eye(len(C)), -h, np.eye(len(C)), np.zeros(len(C)))[0]
        return (v @ G64 + g).astype(np.float32)

    names = ("Decomposed", "GEM", "DualProj", "UPGrad", "quadprog")
    print(f"{'':<28}" + "".join(f"{name:>12}" for name in names))
    for (network, N), T in product(SIZES.items(), TASKS):
        g, G, c = gradients(T, N, "torch")
        calls: dict[str, Callable[[], Any]] = {
            "floor": floors(g, G, c)["floor"],
            "Decomposed": partial(gp.project, g, G),
            "GEM": partial(gp.project, g, G, gp.GEM()),
            "DualProj": partial(DualProj(), G),
            "UPGrad": partial(UPGrad(), G),
            "quadprog": partial(by_quadprog, g.numpy(), G.numpy()),
        }
        seconds = cpu_seconds(calls, 3.0)
        row = "".join(f"{seconds[name] / seconds['floor']:>12.2f}" for name in names)
        print(f"{f'{network} T = {T}':<28}{row}", flush=True)


def table_of_memory() -> None:
    print("\nPeak extra memory of `project` on NumPy, in gradients of N float32 (G itself is T)")
    for network, N in SIZES.items():
        for T in TASKS:
            g, G, _ = gradients(T, N)
            row = ""
            for name, method in METHODS.items():
                gp.project(g, G, method)
                tracemalloc.start()
                gp.project(g, G, method)
                peak = tracemalloc.get_traced_memory()[1]
                tracemalloc.stop()
                row += f"  {name} {peak / (4 * N):.2f}"
            print(f"{f'{network} T = {T}':<20}{row}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    assert sum(resnet_tensors()) == SIZES["ResNet18"]
    table_of_methods()
    table_of_layers()
    table_of_others()
    table_of_memory()
