"""CPU time of the projection without stored samples, as a ratio to the bare matrix products.

    python benchmarks/preserve_core.py [--quick]

One thread, float32. Each ratio is the median over turns, against the product of the same library in
the same turn. "spread" is the largest relative difference between the ratios of the even and of the
odd turns. The layers have 100 outputs.
"""

from __future__ import annotations

import one_thread  # noqa: F401  # isort: skip (before any library starts its thread pool)

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import torch
from timing import Table, in_turns, parser

import gradproj as gp

LIBRARIES = {"NumPy": np.asarray, "torch": torch.from_numpy}
OUTPUTS = 100
RANK = 32
# Small batches are collected, so that one update in many forms a product.
UPDATES = 64


@dataclass(frozen=True)
class Sizes:
    """Extent of a run: time and number of turns per row, numbers of inputs, rows per batch."""

    seconds: float
    turns: int
    inputs: tuple[int, ...]
    batches: tuple[int, ...]


FULL = Sizes(seconds=3.0, turns=11, inputs=(101, 785, 2305), batches=(10, 100, 2000))
QUICK = Sizes(seconds=0.05, turns=3, inputs=(101,), batches=(10, 100))


def inputs(rows: int, n: int) -> np.ndarray:
    """Return inputs whose sizes along the directions decay, with a 1 for the bias."""
    rng = np.random.default_rng(n)
    a = rng.standard_normal((rows, n), dtype=np.float32) * np.geomspace(1, 0.01, n)
    a[:, -1] = 1
    return a.astype(np.float32)


def moments(n: int, **options: Any) -> gp.InputMoments:
    made = gp.InputMoments(**options)
    made.update(inputs(2 * n, n))
    return made


def table_of_steps(sizes: Sizes) -> None:
    columns = ("dense", "in place", f"rank {RANK}", "basis")
    table = Table(
        f"apply: CPU time of a step over the product g @ M; the low-rank form and the basis have "
        f"{RANK} directions. Target for dense: at most 1.1 where the product takes 0.1 ms",
        (*columns, "spread", "product"),
        label_width=30,
    )
    for (library, array), n, rows in product(LIBRARIES.items(), sizes.inputs, (10, OUTPUTS)):
        S = array(moments(n).matrix())
        low = moments(n, rank=RANK).matrix()
        low = gp.LowRankMoments(*(array(x) for x in (low.vectors, low.values, low.rest)))
        g = array(inputs(rows, n))
        M = gp.Preservation.soft(S, 1.0).matrix
        calls: dict[str, Callable[[], Any]] = {
            "product": partial(g.__matmul__, M),
            "dense": partial(gp.Preservation.soft(S, 1.0).apply, g),
            "in place": partial(gp.Preservation.soft(S, 1.0).apply, g, out=0 * g),
            columns[2]: partial(gp.Preservation.soft(low, 1.0).apply, g),
            "basis": partial(gp.Preservation.hard(low.vectors).apply, g),
        }
        print_row(table, f"{library} {n} inputs, {rows} rows", calls, columns, "product", sizes)


def table_of_updates(sizes: Sizes) -> None:
    columns = ("full", f"rank {RANK}", "diagonal")
    table = Table(
        "update: CPU time of InputMoments.update over the product a.T @ a of the same batch",
        (*columns, "spread", "product"),
        label_width=30,
    )
    options: tuple[dict[str, Any], ...] = ({}, {"rank": RANK}, {"diagonal": True})
    for (library, array), n, rows in product(LIBRARIES.items(), sizes.inputs, sizes.batches):
        a = array(inputs(rows, n))
        count = max(UPDATES // max(rows // 10, 1), 1)
        calls: dict[str, Callable[[], Any]] = {
            name: partial(repeat, gp.InputMoments(**each).update, a, count)
            for name, each in zip(columns, options, strict=True)
        }
        calls["product"] = partial(repeat, lambda a: a.T @ a, a, count)
        print_row(table, f"{library} {n} inputs, {rows} rows", calls, columns, "product", sizes)


def repeat(function: Callable[[Any], Any], a: Any, count: int) -> None:
    for _ in range(count):
        function(a)


def table_of_preparation(sizes: Sizes) -> None:
    columns = ("soft", "projection", f"rank {RANK}", "input_basis")
    table = Table(
        "prepare: CPU time when a task ends, over the inverse of a float64 matrix; the projection "
        "onto the null space (strength=inf) and the basis need eigenvalues",
        (*columns, "spread", "inverse"),
        label_width=30,
    )
    for (library, array), n in product(LIBRARIES.items(), sizes.inputs):
        S = array(moments(n).matrix())
        inverse = torch.linalg.inv if library == "torch" else np.linalg.inv
        calls: dict[str, Callable[[], Any]] = {
            "inverse": partial(inverse, array(np.eye(n) + moments(n).total / (2 * n))),
            "soft": partial(gp.Preservation.soft, S, 1.0),
            "projection": partial(gp.Preservation.soft, S, math.inf),
            columns[2]: partial(gp.Preservation.soft, S, 1.0, rank=RANK),
            "input_basis": partial(gp.input_basis, S, share=0.95),
        }
        print_row(table, f"{library} {n} inputs", calls, columns, "inverse", sizes)


def print_row(
    table: Table,
    label: str,
    calls: dict[str, Callable[[], Any]],
    columns: tuple[str, ...],
    base: str,
    sizes: Sizes,
) -> None:
    turns = in_turns(calls, sizes.seconds, least=sizes.turns)
    ratios = [turns.ratio(name, base) for name in columns]
    microseconds = f"{1e6 * turns.seconds(base):.1f} µs"
    table.row(label, *ratios, turns.spread(columns, base), microseconds)


def main() -> None:
    sizes = QUICK if parser(__doc__).parse_args().quick else FULL
    table_of_steps(sizes)
    table_of_updates(sizes)
    table_of_preparation(sizes)


if __name__ == "__main__":
    main()
