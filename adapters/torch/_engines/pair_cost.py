"""The choice of the weights whose gradients are kept as pairs, by estimated cost."""

from __future__ import annotations

from torch import Tensor, nn

from gradproj.adapters.torch._engines.pair_layers import supported

# `gp.measure_layers` measures layers of up to this size in float64. Keep them out of here, so that
# they have the same tolerance in both forms. They would not gain from pairs either.
_SMALL = 1 << 10
# A gradient above this size no longer fits into a shared cache together with its neighbors.
_CACHE_BYTES = 16 << 20
# Cost of the function calls for a factored layer, in operations. Measured in MLPs of width 100 to
# 400 with batches of 8, where pairs gain from about 100,000 parameters per layer.
_CALLS, _CALLS_PER_TASK = 5_000_000, 1_500_000


def worthwhile(parameter: Tensor, rows: int, tasks: int, *, embedding: bool = False) -> bool:
    """Estimate whether pairs are cheaper than gradients, from operation counts.

    Parameters
    ----------
    parameter : Tensor
        The weight, (out, in) or (entries, width).
    rows : int
        Number of rows (samples or tokens) of all tasks together, the new one included.
    tasks : int
        Number of old tasks.
    embedding : bool
        Whether it is the weight of an embedding layer.

    Examples
    --------
    >>> import torch
    >>> weight = torch.empty(2000, 2000)
    >>> worthwhile(weight, 20 * 21, tasks=20), worthwhile(weight, 100 * 21, tasks=20)
    (True, False)
    """
    size, count = parameter.numel(), tasks + 1
    if size <= _SMALL or not tasks:
        return False
    # Measured on one core of a CPU: set to zero, copy and combine gradients, per number.
    handling = 20 if size * parameter.element_size() > _CACHE_BYTES else 3
    formed = (1.5 * count + handling) * count * size - _CALLS - _CALLS_PER_TASK * count
    if embedding:
        return rows * parameter.shape[1] * (1.5 * count + 20) < formed
    # Both forms spend another rows · size operations: on the gradients, or on the update.
    return 1.3 * rows**2 * sum(parameter.shape) < formed


def is_wide(model: nn.Module, rows: int, tasks: int) -> bool:
    """Return whether most parameters of a model would be factored, for batches of `rows` rows."""
    total = sum(p.numel() for p in model.parameters() if p.requires_grad)
    wide = {
        module.weight: module.weight.numel()
        for module in supported(model)
        if module.weight.requires_grad
        and worthwhile(
            module.weight,
            rows * (tasks + 1),
            tasks,
            embedding=isinstance(module, nn.Embedding),
        )
    }
    return 2 * sum(wide.values()) > total
