"""`nn.MultiheadAttention`, which applies its linear layers without calling them.

Its hooks see the query, key and value. The input of the output projection is computed once more.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from gradproj.adapters.torch._preserver.kinds import Kind, Linear
from gradproj.adapters.torch._preserver.places import Place
from gradproj.adapters.torch._preserver.protected import Protected

Role = Literal["query", "key", "value"]
_ROLES: tuple[Role, ...] = ("query", "key", "value")


class _Projected(Linear):
    """The projection of the query, the key or the value."""

    def __init__(self, attention: nn.MultiheadAttention, role: Role, weight: Tensor) -> None:
        Kind.__init__(self, attention)
        self.bias = attention.in_proj_bias is not None
        self.attention = attention
        self.role = role
        self.shape = (attention.embed_dim, weight.shape[1])

    def input(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Tensor:
        """Return the query, key or value, with the batch first."""
        position = _ROLES.index(self.role)
        found: Tensor = args[position] if len(args) > position else kwargs[self.role]
        return _batch_first(self.attention, found)


class _Output(Linear):
    """The output projection."""

    def __init__(self, attention: nn.MultiheadAttention) -> None:
        super().__init__(attention.out_proj)
        self.attention = attention

    def input(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Tensor:
        """Return the heads' answers: what attention returns if the projection is the identity."""
        attention = self.attention
        weight = attention.out_proj.weight
        same = torch.eye(len(weight), dtype=weight.dtype, device=weight.device)
        twin = copy.copy(attention)
        twin.__dict__["out_proj"] = SimpleNamespace(weight=same, bias=None)
        # The real pass comes next and must drop the same weights out: the random numbers that are
        # used here are put back.
        devices = [weight.device] if weight.device.type == "cuda" else []
        with torch.no_grad(), torch.random.fork_rng(devices):
            found: Tensor = nn.MultiheadAttention.forward(twin, *args, **kwargs)[0]
        return _batch_first(attention, found)


def _batch_first(attention: nn.MultiheadAttention, x: Tensor) -> Tensor:
    """Return positions in the order of an attention mask, (batch, tokens, …)."""
    return x.transpose(0, 1) if x.dim() == 3 and not attention.batch_first else x


def is_attention(module: nn.Module) -> bool:
    """Return whether a module is torch's attention, with its own forward pass."""
    return (
        isinstance(module, nn.MultiheadAttention)
        and type(module).forward is nn.MultiheadAttention.forward
    )


def projection_layers(name: str, attention: Any) -> list[Protected]:
    """Return the projections of query, key and value, which are rows of the same parameters.

    Parameters
    ----------
    name : str
        Name of the module.
    attention : MultiheadAttention
        The module.
    """
    size = attention.embed_dim
    together = attention.in_proj_weight is not None
    made = []
    for position, role in enumerate(_ROLES):
        rows = slice(position * size, (position + 1) * size)
        key = "in_proj_weight" if together else f"{role[0]}_proj_weight"
        places = {
            "weight": Place(attention, key, rows if together else None),
            "bias": Place(attention, "in_proj_bias", rows),
        }
        kind = _Projected(attention, role, getattr(attention, key))
        made.append(Protected(f"{name}.{role}", {attention: kind}, places))
    return made


def output_layer(name: str, attention: Any) -> Protected:
    """Return the output projection, whose input is known when the attention module is called."""
    places = {key: Place(attention.out_proj, key) for key in ("weight", "bias")}
    return Protected(name, {attention: _Output(attention)}, places)


@contextmanager
def without_fast_path() -> Iterator[None]:
    """Let transformer layers call the modules inside of them, in every mode.

    In evaluation, torch replaces whole layers by one operation, and padded inputs by nested
    tensors, which layers with hooks cannot take.
    """
    enabled = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(enabled)
