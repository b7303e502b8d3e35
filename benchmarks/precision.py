"""Errors of float32: residuals of the constraints for three ways to form the inner products.

    python benchmarks/precision.py [--quick]

The gradients are those of a trained network, and copies whose task-specific part is shrunk so that
the old gradients become nearly equal. Each cell shows the largest violation of a constraint by the
update, relative to ‖g‖ and the longest old gradient and computed in float64, with the rank in
parentheses. The columns are:

- one product: C = G Gᵀ as one float32 matrix product;
- blocked: float32 products of blocks of columns, summed in float64 (the default of `project`);
- precise: products and sums in float64 (`precise=True`).
"""

from __future__ import annotations

import one_thread  # noqa: F401  # isort: skip (before any library starts its thread pool)

import numpy as np
import timing
import torch
from sklearn.datasets import load_digits

import gradproj as gp


def network_gradients(tasks: int, steps: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return new and old gradients of an MLP after `steps` steps on each permutation of digits."""
    torch.manual_seed(seed)
    x, y = load_digits(return_X_y=True)
    images = torch.tensor(x / 16, dtype=torch.float32)
    labels = torch.tensor(y)
    model = torch.nn.Sequential(
        torch.nn.Linear(64, 300), torch.nn.ReLU(), torch.nn.Linear(300, 200), torch.nn.ReLU(),
        torch.nn.Linear(200, 10),
    )  # fmt: skip
    orders = [torch.randperm(64) for _ in range(tasks + 1)]

    def gradient(order: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        loss = torch.nn.functional.cross_entropy(model(images[rows][:, order]), labels[rows])
        parts = torch.autograd.grad(loss, list(model.parameters()))
        return torch.cat([part.flatten() for part in parts])

    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for order in orders[:tasks]:
        for rows in torch.randperm(len(images)).split(10)[:steps]:
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(images[rows][:, order]), labels[rows])
            loss.backward()
            optimizer.step()
    draw = [torch.randperm(len(images))[:20] for _ in orders]
    gradients = [gradient(o, d) for o, d in zip(orders, draw, strict=True)]
    return gradients[-1].numpy(), torch.stack(gradients[:-1]).numpy()


def shrunk(G: np.ndarray, factor: float) -> np.ndarray:
    """Return old gradients with the same shared part and a task-specific part × `factor`."""
    shared, specific = gp.decompose(G.astype(np.float64))
    return (shared + factor * specific).astype(np.float32)


def one_product(g: np.ndarray, G: np.ndarray) -> tuple[np.ndarray, int]:
    """Project from inner products that are each one float32 sum over all columns."""
    tolerance = gp.measure(g, G, precise=False).tolerance
    products = gp.Products(C=G @ G.T, h=G @ g, square=g @ g, tolerance=tolerance)
    solution = gp.Decomposed().solve(products)
    return gp.combine(g, G, solution.coefficients, precise=False), int(solution.rank)


def by_project(g: np.ndarray, G: np.ndarray, *, precise: bool) -> tuple[np.ndarray, int]:
    result = gp.project(g, G, full_output=True, precise=precise)
    return result.update, result.rank


def residual(w: np.ndarray, g: np.ndarray, G: np.ndarray) -> float:
    """Return the largest violation, in units of ‖g‖ and the longest old gradient."""
    w, g, G = (x.astype(np.float64) for x in (w, g, G))
    shared, specific = gp.decompose(G)
    unit = np.linalg.norm(g) * np.linalg.norm(G, axis=1).max()
    return max(np.abs(specific @ w).max(), -(shared @ w)) / unit


def main() -> None:
    options = timing.parser(__doc__).parse_args()
    tasks, steps = (5, 10) if options.quick else (20, 100)
    factors = (1e-1, 1e-3) if options.quick else (1e-1, 1e-2, 1e-3, 1e-4, 1e-5)
    g, real = network_gradients(tasks, steps)
    cases = {"trained network": real}
    cases |= {f"specific part × {factor:g}": shrunk(real, factor) for factor in factors}
    table = timing.Table(
        f"Residual (rank), T = {tasks}, N = {g.shape[0]:,}, float32",
        ("condition", "one product", "blocked", "precise"),
        width=12,
    )
    for name, G in cases.items():
        _, specific = gp.decompose(G.astype(np.float64))
        sizes = np.linalg.svd(specific, compute_uv=False)
        condition = np.linalg.norm(G, axis=1).max() / sizes[tasks - 2]
        results = (
            one_product(g, G),
            by_project(g, G, precise=False),
            by_project(g, G, precise=True),
        )
        cells = (f"{residual(w, g, G):.1e} ({rank})" for w, rank in results)
        table.row(name, f"{condition:.1e}", *cells)


if __name__ == "__main__":
    main()
