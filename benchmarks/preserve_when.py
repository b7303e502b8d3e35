"""Accuracy of the two forms of `Preserver.attach`: when="gradient" and when="step".

    python benchmarks/preserve_when.py [--quick]

Permuted digits, which ship with scikit-learn: 4 tasks, 4 epochs of batches of 32 each, MLP
64-100-10. The learning rate and the strength of each cell are chosen by the mean accuracy on all
tasks at the end, over seeds 100 and 101. The table has the mean over seeds 0, 1 and 2, with the
standard deviation, and the choice.
"""

from __future__ import annotations

import one_thread  # noqa: F401  # isort: skip (before any library starts its thread pool)

from collections.abc import Callable, Iterable
from functools import partial
from itertools import product
from statistics import mean, stdev
from typing import Any

import torch
from sklearn.datasets import load_digits
from timing import Table, parser
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from gradproj.adapters.torch import Preserver

TASKS, EPOCHS, BATCH = 4, 4, 32
OPTIMIZERS: dict[str, tuple[Callable[..., torch.optim.Optimizer], tuple[float, ...]]] = {
    "SGD": (torch.optim.SGD, (0.1, 0.3, 1.0)),
    "SGD, momentum 0.9": (partial(torch.optim.SGD, momentum=0.9), (0.03, 0.1, 0.3)),
    "Adam": (torch.optim.Adam, (3e-3, 1e-2, 3e-2)),
}
STRENGTHS = (1.0, 10.0, 100.0)
COLUMNS = ("fine-tuning", "gradient", "step")


def accuracy(
    make: Callable[..., torch.optim.Optimizer],
    form: str,
    rate: float,
    strength: float,
    seed: int,
    epochs: int,
) -> float:
    """Return the mean accuracy on the test images of all tasks after the last one, in percent."""
    torch.manual_seed(seed)
    x, y = (torch.from_numpy(part) for part in load_digits(return_X_y=True))
    x, test = x.float() / 16, torch.arange(len(y)) % 5 == 0
    orders = [torch.randperm(64) for _ in range(TASKS)]
    model = nn.Sequential(nn.Linear(64, 100), nn.ReLU(), nn.Linear(100, 10))
    optimizer = make(model.parameters(), lr=rate)
    preserver: Preserver | None = None
    if form != "fine-tuning":
        preserver = Preserver(model, strength=strength, when=form)  # type: ignore[arg-type]
        preserver.attach(optimizer)
    for order in orders:
        inputs, labels = x[~test][:, order], y[~test]
        for _ in range(epochs):
            for batch in torch.randperm(len(labels)).split(BATCH):
                optimizer.zero_grad()
                loss = cross_entropy(model(inputs[batch]), labels[batch])
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
        if preserver is not None:
            with torch.no_grad(), preserver.observe():
                model(inputs)
            preserver.consolidate()
    return 100 * mean(_share_right(model, x[test][:, order], y[test]) for order in orders)


def _share_right(model: nn.Module, x: Tensor, y: Tensor) -> float:
    return float((model(x).argmax(1) == y).float().mean())


def cell(
    make: Callable[..., torch.optim.Optimizer],
    form: str,
    rates: Iterable[float],
    tuning: Iterable[int],
    seeds: Iterable[int],
    epochs: int,
) -> str:
    """Return "mean ± deviation (learning rate, strength)" for the best choice on `tuning`."""
    strengths: Iterable[Any] = (0.0,) if form == "fine-tuning" else STRENGTHS
    rate, strength = max(
        product(rates, strengths),
        key=lambda choice: mean(accuracy(make, form, *choice, seed, epochs) for seed in tuning),
    )
    found = [accuracy(make, form, rate, strength, seed, epochs) for seed in seeds]
    spread = f" ± {stdev(found):.1f}" if len(found) > 1 else ""
    return f"{mean(found):.1f}{spread} ({rate:g}, {strength:g})"


def main() -> None:
    options = parser(__doc__).parse_args()
    tuning, seeds = ((100,), (0,)) if options.quick else ((100, 101), (0, 1, 2))
    epochs = 1 if options.quick else EPOCHS
    table = Table(
        "Mean accuracy on all tasks at the end, in percent (learning rate, strength)",
        COLUMNS,
        width=24,
    )
    for label, (make, rates) in OPTIMIZERS.items():
        if options.quick:
            rates = rates[1:2]
        table.row(label, *(cell(make, form, rates, tuning, seeds, epochs) for form in COLUMNS))


if __name__ == "__main__":
    main()
