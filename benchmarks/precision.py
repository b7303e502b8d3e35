"""What float32 costs: optimality residuals of the three ways to measure inner products.

Prints, for gradients of a real network and for ever worse conditioned ones, the worst KKT residual
of the update (relative, against the exact basis in float64) and the rank found, for
- one product: C = G Gᵀ as one float32 matrix product,
- blocked: float32 products of 16,384 columns, added up in float64 (the default),
- precise: products and sums in float64 (`precise=True`).
"""

from __future__ import annotations

import numpy as np
import torch
from sklearn.datasets import load_digits

import gradproj as gp
from gradproj._measure import combine_layer
from gradproj._method import TOLERANCE_32

TASKS = 20


def network_gradients(seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Old and new gradients of an MLP that has just learnt permuted digits."""
    torch.manual_seed(seed)
    x, y = load_digits(return_X_y=True)
    images = torch.tensor(x / 16, dtype=torch.float32)
    labels = torch.tensor(y)
    model = torch.nn.Sequential(
        torch.nn.Linear(64, 300), torch.nn.ReLU(), torch.nn.Linear(300, 200), torch.nn.ReLU(),
        torch.nn.Linear(200, 10),
    )  # fmt: skip
    orders = [torch.randperm(64) for _ in range(TASKS + 1)]

    def gradient(order: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        loss = torch.nn.functional.cross_entropy(model(images[rows][:, order]), labels[rows])
        parts = torch.autograd.grad(loss, list(model.parameters()))
        return torch.cat([part.flatten() for part in parts])

    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for order in orders[:TASKS]:
        for rows in torch.randperm(len(images)).split(10)[:100]:
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(images[rows][:, order]), labels[rows])
            loss.backward()
            optimizer.step()
    draw = [torch.randperm(len(images))[:20] for _ in orders]
    gradients = [gradient(o, d) for o, d in zip(orders, draw, strict=True)]
    return gradients[-1].numpy(), torch.stack(gradients[:-1]).numpy()


def shrunk(G: np.ndarray, factor: float) -> np.ndarray:
    """The same shared part, the task-specific one shrunk: nearly equal gradients."""
    shared, specific = gp.decompose(G.astype(np.float64))
    return (shared + factor * specific).astype(np.float32)


def one_product(g: np.ndarray, G: np.ndarray) -> tuple[np.ndarray, int]:
    solution = gp.Decomposed().solve(G @ G.T, G @ g, tolerance=TOLERANCE_32)
    return combine_layer(np, g, G, solution.coefficients, False), int(solution.rank)


def judge(w: np.ndarray, g: np.ndarray, G: np.ndarray) -> float:
    """Worst residual of the constraints, in units of ‖g‖ and the longest old gradient."""
    w, g, G = (x.astype(np.float64) for x in (w, g, G))
    shared, specific = gp.decompose(G)
    unit = np.linalg.norm(g) * np.linalg.norm(G, axis=1).max()
    return max(np.abs(specific @ w).max(), -(shared @ w)) / unit


def main() -> None:
    g, real = network_gradients()
    print(f"T = {TASKS}, N = {g.shape[0]:,}, float32; residual (rank)")
    print(f"{'gradients':<28}{'condition':>10}{'one product':>18}{'blocked':>18}{'precise':>18}")
    cases = {"of a trained network": real}
    cases |= {f"specific part × {f:g}": shrunk(real, f) for f in (1e-1, 1e-2, 1e-3, 1e-4, 1e-5)}
    for name, G in cases.items():
        _, specific = gp.decompose(G.astype(np.float64))
        sizes = np.linalg.svd(specific, compute_uv=False)
        condition = np.linalg.norm(G, axis=1).max() / sizes[TASKS - 2]
        cells = [one_product(g, G)]
        for precise in (False, True):
            result = gp.project(g, G, full_output=True, precise=precise)
            cells.append((result.update, result.rank))
        row = "".join(f"{f'{judge(w, g, G):.1e} ({rank})':>18}" for w, rank in cells)
        print(f"{name:<28}{condition:>10.1e}{row}")


if __name__ == "__main__":
    main()
