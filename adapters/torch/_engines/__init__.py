"""Ways to compute the gradients of a step: one backward call after the other, or all at once."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from gradproj.adapters.torch._arguments import EngineName
from gradproj.adapters.torch._engines.base import Batch, Engine, Evaluate, VectorizeError
from gradproj.adapters.torch._engines.loop import Loop
from gradproj.adapters.torch._engines.vmap import Vmap

__all__ = ["LOOP", "Batch", "Engine", "Evaluate", "VectorizeError", "choose"]

LOOP, VMAP = Loop(), Vmap()


def choose(wanted: EngineName, model: nn.Module, old: Sequence[Batch] | None = None) -> Engine:
    """Return the engine for a step; raise for a vmap that cannot work.

    Without batches the answer is for many old tasks with batches of one shape.
    """
    if wanted == "loop" or (wanted == "auto" and not VMAP.worthwhile(model, old)):
        return LOOP
    obstacle = VMAP.obstacle(model, old or ())
    if obstacle is None:
        return VMAP
    if wanted == "vmap":
        raise ValueError(f'engine="vmap" cannot be used: {obstacle}; use engine="loop"')
    return LOOP
