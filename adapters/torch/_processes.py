"""`Processes`: the network traffic when several processes train one model."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import distributed as dist
from torch import nn

import gradproj as gp
from gradproj.adapters.torch import _shards
from gradproj.adapters.torch._arguments import Distributed
from gradproj.adapters.torch._layout import replicas
from gradproj.adapters.torch._rows import Rows


class Processes:
    """The processes that take part in a step, and the data that they share.

    Parameters
    ----------
    mode : {None, "average", "sharded"}
        None: nothing is shared.
    group : ProcessGroup, optional
        All processes unless given.
    """

    def __init__(self, mode: Distributed | None, group: Any = None) -> None:
        if mode is not None and not _initialized():
            raise RuntimeError(
                f"distributed={mode!r} needs torch.distributed; call init_process_group() first"
            )
        self.mode = mode
        self.group = group
        self._warned = False

    @property
    def alone(self) -> bool:
        """Whether no other process takes part in the training."""
        return self.mode is None and (not _initialized() or dist.get_world_size(self.group) < 2)

    def warn(self, model: nn.Module) -> None:
        """Warn once if the replicas of a plain module would drift apart."""
        if self._warned or self.mode is not None or not _initialized():
            return
        if dist.get_world_size(self.group) < 2 or replicas(model) is not None:
            return
        if any(_shards.is_sharded(p) for p in model.parameters()):
            return
        self._warned = True
        warnings.warn(
            f"there are {dist.get_world_size(self.group)} processes and distributed=None, so "
            "gradients are not averaged and the replicas drift apart, unless the losses go through "
            'a DistributedDataParallel model; pass distributed="average"',
            stacklevel=6,
        )

    @contextmanager
    def watch(self, model: nn.Module) -> Iterator[Callable[[str], None]]:
        """Yield a check to call before each backward call of a step.

        DistributedDataParallel averages only the first backward call after a forward pass. The
        check raises for a loss whose forward pass was made before an earlier backward call.
        """
        wrapper = replicas(model) if self.mode is None else None
        if wrapper is None:
            yield lambda _: None
            return
        forwards = [1]  # the first loss may have been computed before the step

        def count(*_: object) -> None:
            forwards[0] += 1

        def check(name: str) -> None:
            if not forwards[0]:
                raise ValueError(
                    f"{name} was computed before an earlier backward call of this step, and "
                    "DistributedDataParallel averages only one backward call per forward pass; "
                    'pass functions or a generator, or use distributed="average"'
                )
            forwards[0] = 0

        handle = wrapper.register_forward_pre_hook(count)
        try:
            yield check
        finally:
            handle.remove()

    def share(self, rows: Rows, tasks: int, touched: Sequence[bool]) -> list[bool]:
        """Average the gradients if that is the mode; agree on which parameters have one."""
        if self.mode is None:
            return list(touched)
        flags = torch.tensor(touched, dtype=torch.int32, device=rows.device)
        dist.all_reduce(flags, dist.ReduceOp.MAX, group=self.group)
        if self.mode == "average":
            world = dist.get_world_size(self.group)
            for leading in rows.leading(tasks):
                # One reduction for all tasks. Every transport can sum, but not all can average.
                dist.all_reduce(leading, group=self.group)
                leading /= world
        return [bool(flag) for flag in flags.tolist()]

    def total(self, products: gp.Products, rows: Rows) -> gp.Products:
        """Sum the inner products over the processes that hold the shards."""
        if self.mode != "sharded":
            return products
        layers, T = products.h.shape
        packed = np.concatenate(
            [products.C.reshape(layers, -1), products.h, products.square[:, None]], axis=1
        )
        # The tolerance of a layer depends on the size of its shard: the largest one counts.
        tolerance = torch.from_numpy(products.tolerance.copy()).to(rows.device)
        dist.all_reduce(tolerance, dist.ReduceOp.MAX, group=self.group)
        total = torch.from_numpy(packed).to(rows.device)
        dist.all_reduce(total, group=self.group)
        found = total.cpu().numpy() / rows.layout.copies
        return gp.Products(
            found[:, : T * T].reshape(layers, T, T),
            found[:, T * T : -1],
            found[:, -1],
            tolerance.cpu().numpy(),
        )

    def agree(self, fine: bool, rows: Rows) -> bool:
        """Whether all processes that hold shards are fine, so that all of them skip a step or none.

        Averaged gradients are the same everywhere, and so are their updates.
        """
        if self.mode != "sharded":
            return fine
        flag = torch.tensor(int(fine), device=rows.device)
        dist.all_reduce(flag, dist.ReduceOp.MIN, group=self.group)
        return bool(flag)


def _initialized() -> bool:
    return dist.is_available() and dist.is_initialized()
