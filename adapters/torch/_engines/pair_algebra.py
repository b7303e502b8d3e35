"""Arithmetic on pairs of inputs and output gradients: inner products and formed gradients."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

import gradproj as gp

# Rounding error of a Gram matrix in float64, relative to the squared sum of |a||d| over the rows.
_ROUNDING = 4 * float(np.finfo(np.float64).eps)
# Rows per block of a Gram matrix, and numbers per block of embeddings: 8 MB in float64.
_ROWS, _NUMBERS = 1 << 10, 1 << 20


def form(inputs: Tensor, outputs: Tensor, out: Tensor, *, embedding: bool) -> None:
    """Write the gradient of a pair to `out`; half precision is summed in float32."""
    dtype = torch.promote_types(torch.promote_types(out.dtype, torch.float32), outputs.dtype)
    work = out if out.dtype == dtype else torch.empty_like(out, dtype=dtype)
    if embedding:
        work.zero_().index_add_(0, inputs, outputs.to(dtype))
    elif work.device.type == "cpu":
        # As in `_outer`, and for products of this shape NumPy was 10 % faster than torch.
        with np.errstate(all="ignore"):  # NaN and infinity are reported elsewhere
            np.matmul(outputs.to(dtype).T.numpy(), inputs.to(dtype).numpy(), out=work.numpy())
    else:
        torch.mm(outputs.to(dtype).T, inputs.to(dtype), out=work)
    if work is not out:
        out.copy_(work)


def _outer(x: Tensor, y: Tensor) -> Tensor:
    """Return x yᵀ. On the CPU NumPy takes half the time for x xᵀ, because of its symmetry."""
    if x.device.type == "cpu":
        with np.errstate(all="ignore"):  # NaN and infinity are reported elsewhere
            return torch.from_numpy(x.numpy() @ y.numpy().T)
    return x @ y.T


def linear_gram(
    inputs: Tensor, outputs: Tensor, owner: Tensor, count: int
) -> tuple[Tensor, Tensor]:
    """Return the inner products (count, count) of the tasks' gradients, and errors (count,).

    The error is that of a task's squared length.

    The products are formed in float64. In float32 their error would grow with the square of the
    cancellation within a task: 1e-3 where the rows of a task cancel to 1/448 of their size.
    """
    A, D = inputs.double(), outputs.double()
    Q = A.new_zeros((count, count))
    sizes = A.new_zeros(count)
    for i in range(0, len(A), _ROWS):
        a, d, mine = (x[i : i + _ROWS] for x in (A, D, owner))
        for j in range(0, i + 1, _ROWS):
            K = _outer(a, a if i == j else A[j : j + _ROWS])
            K *= _outer(d, d if i == j else D[j : j + _ROWS])
            # Sum over the rows of each task, then over the columns.
            part = A.new_zeros((count, K.shape[1])).index_add_(0, mine, K)
            part = torch.zeros_like(Q).index_add_(1, owner[j : j + _ROWS], part)
            Q += part if i == j else part + part.T
            if i == j:
                sizes.index_add_(0, mine, K.diagonal().sqrt())  # |a||d| of each row
    return Q, _ROUNDING * sizes**2


def embedding_gram(
    indices: Tensor, outputs: Tensor, owner: Tensor, count: int, entries: int
) -> Tensor:
    """Return the inner products (count, count) of the tasks' gradients."""
    # One row per task and index.
    keys, inverse = torch.unique(owner * entries + indices, return_inverse=True)
    sums = outputs.new_zeros((len(keys), outputs.shape[1]), dtype=torch.float64)
    sums.index_add_(0, inverse, outputs.double())
    tasks, tokens = keys // entries, keys % entries
    _, position, uses = torch.unique(tokens, return_inverse=True, return_counts=True)
    alone = uses[position] == 1
    Q = sums.new_zeros((count, count))
    # An index that only one task uses adds to the length of that task's gradient only.
    Q.diagonal().index_add_(0, tasks[alone], sums[alone].square().sum(1))
    order = position[~alone].argsort()
    sums, tasks, position = (x[~alone][order] for x in (sums, tasks, position))
    shared = torch.unique_consecutive(position, return_inverse=True)[1]
    width = max(1, _NUMBERS // (count * sums.shape[1]))
    total = int(shared[-1]) + 1 if len(shared) else 0
    starts = torch.arange(0, total + width, width, device=shared.device)
    cuts = torch.searchsorted(shared, starts).tolist()
    for k, (start, stop) in enumerate(pairwise(cuts)):
        block = sums.new_zeros((count, width, sums.shape[1]))
        block[tasks[start:stop], shared[start:stop] - k * width] = sums[start:stop]
        rows = block.view(count, -1)
        Q += _outer(rows, rows)
    return Q


def square(tensor: Tensor) -> float:
    """Return the squared length of a tensor, summed in float64."""
    flat = tensor.reshape(-1)
    return float(sum(part.double().square().sum() for part in torch.split(flat, _NUMBERS)))


def measured(rows: Tensor) -> gp.Products:
    """Measure gradients (T + 1, size), the new task's last."""
    if rows.device.type == "cpu":
        found = rows.numpy()
        return gp.measure_layers([found[-1]], [found[:-1]], check=False)[0]
    return gp.measure_layers([rows[-1]], [rows[:-1]], check=False)[0]
