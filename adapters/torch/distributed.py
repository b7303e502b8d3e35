"""What crosses the network when many processes train one model."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import distributed as dist

import gradproj as gp
from gradproj.adapters.torch.gradients import Gradients


class Processes:
    """The processes that share a step, and what they share.

    Parameters
    ----------
    mode : {None, "average", "sharded"}
        None: a process of its own.
    group : ProcessGroup, optional
        All processes unless given.
    """

    def __init__(self, mode: str | None, group: Any = None) -> None:
        if mode is not None and not (dist.is_available() and dist.is_initialized()):
            raise RuntimeError(
                f"distributed={mode!r} needs torch.distributed; call init_process_group() first"
            )
        self.mode = mode
        self.group = group

    def share(self, gradients: Gradients, rows: int, touched: list[bool]) -> list[bool]:
        """Average the gradients if that is the mode; agree on which parameters have one."""
        if self.mode is None:
            return touched
        flags = torch.tensor(touched, dtype=torch.int32, device=gradients.device)
        dist.all_reduce(flags, dist.ReduceOp.MAX, group=self.group)
        if self.mode == "average":
            world = dist.get_world_size(self.group)
            for block in gradients.blocks:
                # One reduction for all tasks: the leading rows are one piece of memory. Not every
                # transport can average, all can sum.
                dist.all_reduce(block.rows[:rows], group=self.group)
                block.rows[:rows] /= world
        return [bool(flag) for flag in flags.tolist()]

    def total(self, products: gp.Products, gradients: Gradients) -> gp.Products:
        """Sum the inner products over the processes that hold the shards."""
        if self.mode != "sharded":
            return products
        layers, T = products.h.shape
        packed = np.concatenate(
            [products.C.reshape(layers, -1), products.h, products.square[:, None]], axis=1
        )
        total = torch.from_numpy(packed).to(gradients.device)
        dist.all_reduce(total, group=self.group)
        found = total.cpu().numpy()
        return gp.Products(
            found[:, : T * T].reshape(layers, T, T),
            found[:, T * T : -1],
            found[:, -1],
            products.tolerance,
        )
