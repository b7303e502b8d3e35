"""CPU time of the core, as a ratio to the matrix products that it cannot avoid.

    python benchmarks/core.py [--quick] [--table methods|layers|others|memory]

One thread, float32. Each ratio is the median over turns, against the floor of the same library in
the same turn. The floor is `G @ G.T`, `G @ g` and `c @ G`. A-GEM does not need `G @ G.T`; its own
floor is the mean `m = c @ G`, two dot products `m @ m` and `m @ g`, and the sum `g + m`.

Two columns show how stable the ratios are. "floor again" is the floor timed a second time, so any
deviation from 1 is noise. "spread" is the largest relative difference between the ratios of the
even and of the odd turns.
"""

from __future__ import annotations

import one_thread  # noqa: F401  # isort: skip (before any library starts its thread pool)

import importlib.util
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise, product
from typing import Any

import numpy as np
import torch
from timing import Table, in_turns, milliseconds, parser

import gradproj as gp

MLP, RESNET = "MLP", "ResNet18"
NETWORKS = {MLP: 89_610, RESNET: 1_109_240}
LIBRARIES = ("NumPy", "torch")
METHODS = {
    "Decomposed": gp.Decomposed(),
    "K=5": gp.Decomposed(rank=5),
    "GEM": gp.GEM(),
    "A-GEM": gp.AGEM(),
    "S-GEM": gp.SGEM(),
}
# Largest ratio to the floor at T = 20, per network; A-GEM against its own floor.
BOUNDS = {
    "Decomposed": {MLP: 1.2, RESNET: 1.05},
    "GEM": {MLP: 1.2, RESNET: 1.05},
    "A-GEM": {MLP: 1.5, RESNET: 1.5},
}
LAYERS_BOUND = 1.2

Measured = dict[tuple[Any, ...], float]


@dataclass(frozen=True)
class Sizes:
    """Extent of a run: time and number of turns per row, and the sizes."""

    seconds: float
    turns: int
    networks: tuple[str, ...]
    tasks: tuple[int, ...]
    layer_tasks: tuple[int, ...]

    def pairs(self) -> product[tuple[str, int]]:
        return product(self.networks, self.tasks)


FULL = Sizes(
    seconds=3.0, turns=11, networks=(MLP, RESNET), tasks=(5, 20, 50), layer_tasks=(5, 20, 50)
)
QUICK = Sizes(seconds=0.1, turns=5, networks=(MLP,), tasks=(5, 20), layer_tasks=(5,))


def resnet_tensors() -> list[int]:
    """Return the sizes of the 62 parameter tensors of the small ResNet18 with 100 outputs."""
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
    """Return a new gradient that conflicts, old ones with a shared part, and weights of a mean."""
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


def table_of_methods(sizes: Sizes) -> Measured:
    table = Table(
        "methods: CPU time over the floor. Targets at T = 20: Decomposed and GEM at most 1.2 for "
        "the MLP (N = 89,610) and 1.05 for ResNet18 (N = 1,109,240), A-GEM at most 1.5",
        (*METHODS, "floor again", "spread", "floor"),
    )
    measured: Measured = {}
    for library, (network, T) in product(LIBRARIES, sizes.pairs()):
        g, G, c = gradients(T, NETWORKS[network], library)
        lowest = floors(g, G, c)
        calls = {name: partial(gp.project, g, G, method) for name, method in METHODS.items()}
        calls["floor again"] = lowest["floor"]
        turns = in_turns(lowest | calls, sizes.seconds, least=sizes.turns)
        base = {name: "A-GEM floor" if name == "A-GEM" else "floor" for name in METHODS}
        ratios = {name: turns.ratio(name, base[name]) for name in METHODS}
        measured |= {("methods", library, network, T, name): r for name, r in ratios.items()}
        table.row(
            f"{library} {network} T = {T}",
            *ratios.values(),
            turns.ratio("floor again", "floor"),
            max(turns.spread([name], base[name]) for name in METHODS),
            milliseconds(turns.seconds("floor")),
        )
    return measured


def table_of_layers(sizes: Sizes) -> Measured:
    tensors = resnet_tensors()
    assert sum(tensors) == NETWORKS[RESNET]
    cuts = [slice(a, b) for a, b in pairwise(np.cumsum([0, *tensors]))]
    table = Table(
        f"layers: {len(tensors)} tensors of ResNet18, CPU time of `project_layers` over `project` "
        f"on the whole network. Target at T = 20: at most {LAYERS_BOUND}",
        ("layerwise", "spread", "whole"),
    )
    measured: Measured = {}
    for library, T in product(LIBRARIES, sizes.layer_tasks):
        g, G, _ = gradients(T, sum(tensors), library)
        layers = [g[cut] for cut in cuts], [G[:, cut] for cut in cuts]
        turns = in_turns(
            {
                "whole": partial(gp.project, g, G),
                "layers": partial(gp.project_layers, *layers),
            },
            sizes.seconds,
            least=sizes.turns,
        )
        ratio = turns.ratio("layers", "whole")
        measured["layers", library, T] = ratio
        spread = turns.spread(["layers"], "whole")
        table.row(f"{library} T = {T}", ratio, spread, milliseconds(turns.seconds("whole")))
    return measured


def other_libraries(g: Any, G: Any) -> dict[str, Callable[[], Any]]:
    """Return the calls of other libraries, without those that are not installed.

    TorchJD's DualProj forms the Gram matrix of the rows that it is given and projects a weighted
    sum of them onto the cone in which no row's product with the update is negative. On the rows
    [g; G] with all weight on g this is GEM: its update w always has gᵀw = ‖w‖² >= 0, so the row g
    adds no constraint. On G alone it projects the mean of the old gradients, which is a smaller
    and different problem. The rows are put together before the clock starts.
    """
    calls: dict[str, Callable[[], Any]] = {}
    if not missing("torchjd", "qpsolvers", "quadprog"):
        from torchjd.aggregation import DualProj, UPGrad

        weights = torch.zeros(len(G) + 1)
        weights[0] = 1
        calls |= {
            "DualProj [g; G]": partial(DualProj(weights), torch.cat((g[None], G))),
            "DualProj G": partial(DualProj(), G),
            "UPGrad G": partial(UPGrad(), G),
        }
    if not missing("quadprog"):
        import quadprog

        def by_quadprog(g: np.ndarray, G: np.ndarray) -> np.ndarray:
            G64 = G.astype(np.float64)
            C, h, unit = G64 @ G64.T, G64 @ g, np.eye(len(G))
            v = quadprog.solve_qp(C + 1e-9 * unit, -h, unit, np.zeros(len(G)))[0]
            return (v @ G64 + g).astype(np.float32)

        calls["quadprog"] = partial(by_quadprog, g.numpy(), G.numpy())
    return calls


def missing(*packages: str) -> list[str]:
    return [name for name in packages if importlib.util.find_spec(name) is None]


def table_of_others(sizes: Sizes) -> Measured:
    ours = ("Decomposed", "GEM")
    others = ("DualProj [g; G]", "DualProj G", "UPGrad G", "quadprog")
    table = Table(
        "others: CPU time over torch's floor beside other libraries. Target at T = 5: Decomposed "
        "and GEM not slower than DualProj. [g; G] has T + 1 rows, as our problem; G has T. The "
        "difference is between the updates of GEM and DualProj [g; G], relative to ‖g‖",
        (*ours, *others, "spread", "difference"),
    )
    measured: Measured = {}
    for network, T in sizes.pairs():
        g, G, c = gradients(T, NETWORKS[network], "torch")
        calls: dict[str, Callable[[], Any]] = {
            "floor": floors(g, G, c)["floor"],
            "Decomposed": partial(gp.project, g, G),
            "GEM": partial(gp.project, g, G, gp.GEM()),
        }
        calls |= other_libraries(g, G)
        turns = in_turns(calls, sizes.seconds, least=sizes.turns)
        names = (*ours, *others)
        difference = None
        if others[0] in turns:
            measured |= {
                ("others", network, T, name, other): turns.ratio(name, other)
                for name, other in product(ours, others[:2])
            }
            apart = torch.linalg.vector_norm(calls["GEM"]() - calls[others[0]]())
            difference = f"{float(apart / torch.linalg.vector_norm(g)):.1e}"
        table.row(
            f"{network} T = {T}",
            *(turns.ratio(name, "floor") if name in turns else None for name in names),
            turns.spread([name for name in names if name in turns], "floor"),
            difference,
        )
    absent = missing("torchjd", "qpsolvers", "quadprog")
    if absent:
        print(f"\nnot installed: {', '.join(absent)} (`make bench` installs them)")
    return measured


def table_of_memory(sizes: Sizes) -> Measured:
    table = Table(
        "memory: largest extra memory of `project` on NumPy, in gradients of N float32; G has T",
        tuple(METHODS),
    )
    for network, T in sizes.pairs():
        N = NETWORKS[network]
        g, G, _ = gradients(T, N)
        cells = []
        for method in METHODS.values():
            gp.project(g, G, method)
            tracemalloc.start()
            gp.project(g, G, method)
            cells.append(tracemalloc.get_traced_memory()[1] / (4 * N))
            tracemalloc.stop()
        table.row(f"{network} T = {T}", *cells)
    return {}


TABLES = {
    "methods": table_of_methods,
    "layers": table_of_layers,
    "others": table_of_others,
    "memory": table_of_memory,
}


def targets() -> dict[str, tuple[float, tuple[Any, ...]]]:
    """Return label, bound and key of each target; the key is that of the measured ratio."""
    found: dict[str, tuple[float, tuple[Any, ...]]] = {}
    for (name, bounds), library, network in product(BOUNDS.items(), LIBRARIES, NETWORKS):
        key = ("methods", library, network, 20, name)
        found[f"{name}, {library}, {network}, T = 20"] = bounds[network], key
    for library in LIBRARIES:
        found[f"layerwise, {library}, T = 20"] = LAYERS_BOUND, ("layers", library, 20)
    both = ("DualProj [g; G]", "DualProj G")
    for name, other, network in product(("Decomposed", "GEM"), both, NETWORKS):
        found[f"{name} over {other}, {network}, T = 5"] = 1.0, ("others", network, 5, name, other)
    return found


def print_targets(measured: Measured) -> None:
    known = {label: rest for label, rest in targets().items() if rest[1] in measured}
    if not known:
        return
    table = Table("targets", ("target", "measured", "result"), label_width=48)
    for label, (bound, key) in known.items():
        result = "ok" if measured[key] <= bound else "missed"
        table.row(label, bound, measured[key], result)


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--table", choices=TABLES, help="print this table only")
    options = arguments.parse_args()
    sizes = QUICK if options.quick else FULL
    measured: Measured = {}
    for name in [options.table] if options.table else TABLES:
        measured |= TABLES[name](sizes)
    print_targets(measured)


if __name__ == "__main__":
    main()
