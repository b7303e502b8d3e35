"""`Layout`: which columns of a row belong to which parameter and layer."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from gradproj.adapters.torch import _shards
from gradproj.adapters.torch.layers import Layers, group_parameters


class Slot(NamedTuple):
    """Where the gradient of a parameter lies in a row, and in which memory order."""

    columns: slice
    shape: torch.Size
    strides: tuple[int, ...]


class Segment(NamedTuple):
    """The columns of one layer in a row."""

    layer: int
    columns: slice


@dataclass(frozen=True, eq=False)
class Block:
    """The parameters of one dtype and device, in layer order, so that a layer is a column range.

    No tensor but the parameters themselves is kept: it would hold weights that a parameter has
    exchanged for others.
    """

    parameters: tuple[nn.Parameter, ...]
    owners: tuple[int, ...]  # the number of each parameter's layer
    slots: tuple[Slot, ...]
    segments: tuple[Segment, ...]
    width: int
    dtype: torch.dtype
    device: torch.device

    @property
    def layers(self) -> list[int]:
        """The number of each segment's layer."""
        return [segment.layer for segment in self.segments]


@dataclass(frozen=True, eq=False)
class Layout:
    """The immutable map from the parameters of a model to layers and columns.

    Attributes
    ----------
    names : dict
        Layer name to the names of its parameters.
    blocks : tuple of Block
        One per pair of dtype and device. The inner products of a layer add up over its blocks.
    copies : int
        How many processes hold each shard of a sharded model.
    """

    names: Mapping[str, tuple[str, ...]]
    blocks: tuple[Block, ...]
    copies: int = 1
    signature: list[tuple[Any, ...]] = field(default_factory=list, repr=False)

    @classmethod
    def of(cls, model: nn.Module, grouping: Layers, *, sharded: bool = False) -> Layout:
        """Lay out the trainable parameters of a model; raise for those that cannot be measured."""
        model = unwrapped(model)
        named = {name: p for name, p in model.named_parameters() if p.requires_grad}
        if not named:
            raise ValueError(
                "model has no parameter that requires a gradient; pass a model with parameters, or "
                "unfreeze some of them with requires_grad_()"
            )
        _refuse_sparse(model)
        for name, p in named.items():
            _check_parameter(name, p)
        copies = _shards.check(named, sharded=sharded)
        names = group_parameters(model, grouping)
        parts: dict[tuple[torch.dtype, torch.device], list[tuple[int, nn.Parameter]]] = {}
        for layer, members in enumerate(names.values()):
            for p in (named[member] for member in members):
                parts.setdefault((p.dtype, p.device), []).append((layer, p))
        blocks = tuple(_block(*kind, members) for kind, members in parts.items())
        return cls(names, blocks, copies, _signature(model))

    @property
    def parameters(self) -> list[nn.Parameter]:
        """All parameters, block by block."""
        return [p for block in self.blocks for p in block.parameters]

    def without(self, parameters: Collection[nn.Parameter]) -> list[Block]:
        """Return the blocks with columns for all parameters except the given ones."""
        found = []
        for block in self.blocks:
            members = zip(block.owners, block.parameters, strict=True)
            kept = [(layer, p) for layer, p in members if p not in parameters]
            found.append(_block(block.dtype, block.device, kept))
        return found

    def describes(self, model: nn.Module) -> bool:
        """Whether the model still has the parameters that it had, of the same kinds."""
        found = _signature(unwrapped(model))
        return len(found) == len(self.signature) and all(
            a[0] is b[0] and a[1:] == b[1:] for a, b in zip(self.signature, found, strict=True)
        )


def _block(
    dtype: torch.dtype, device: torch.device, members: list[tuple[int, nn.Parameter]]
) -> Block:
    slots: list[Slot] = []
    segments: list[Segment] = []
    width = 0
    for layer, p in members:
        t = _shards.local(p.detach())
        columns = slice(width, width + t.numel())
        slots.append(Slot(columns, t.shape, dense_strides(t)))
        if segments and segments[-1].layer == layer:
            columns = slice(segments.pop().columns.start, columns.stop)
        segments.append(Segment(layer, columns))
        width = columns.stop
    owners, parameters = tuple(layer for layer, _ in members), tuple(p for _, p in members)
    return Block(parameters, owners, tuple(slots), tuple(segments), width, dtype, device)


def _signature(model: nn.Module) -> list[tuple[Any, ...]]:
    """Return what a layout depends on; a tied parameter occurs as often as the model has it.

    It is computed for each step, where `model.parameters()` would take longer than the projection
    of a small layer.
    """
    found: list[nn.Parameter] = []
    modules = [model]
    for module in modules:
        found += [p for p in module._parameters.values() if p is not None and p.requires_grad]
        modules += [child for child in module._modules.values() if child is not None]
    return [(p, p.dtype, p.device, p.shape, p.stride()) for p in found]


def dense_strides(t: Tensor) -> tuple[int, ...]:
    """Return the strides of a gradient: the parameter's own memory order if it is dense.

    >>> image = torch.zeros(2, 3, 4, 4).to(memory_format=torch.channels_last)
    >>> dense_strides(image) == image.stride()
    True
    """
    expected = 1
    for stride, size in sorted((s, n) for s, n in zip(t.stride(), t.shape, strict=True) if n > 1):
        if stride != expected:
            return torch.empty(t.shape, device="meta").stride()
        expected *= size
    return t.stride()


def unwrapped(model: nn.Module) -> nn.Module:
    """Return the network inside torch's wrappers, whose parameter names users know."""
    while (inner := _inner(model)) is not None:
        model = inner
    return model


def replicas(model: nn.Module) -> nn.parallel.DistributedDataParallel | None:
    """Return the DistributedDataParallel wrapper of a model, if it has one."""
    found: nn.Module | None = model
    while found is not None and not isinstance(found, nn.parallel.DistributedDataParallel):
        found = _inner(found)
    return found


def _inner(model: nn.Module) -> nn.Module | None:
    if isinstance(model, (nn.parallel.DistributedDataParallel, nn.DataParallel)):
        inner: nn.Module = model.module
        return inner
    # The result of torch.compile is recognized by its name: importing the type takes 2 seconds.
    if type(model).__name__ == "OptimizedModule":
        return model.get_submodule("_orig_mod")
    return None


def _check_parameter(name: str, p: nn.Parameter) -> None:
    """Raise for a parameter whose gradients cannot be measured correctly."""
    if p.is_complex():
        raise TypeError(
            f"parameter {name!r} is complex ({p.dtype}) and inner products here are of real "
            "numbers; store it in the form of torch.view_as_real, or freeze it"
        )
    if p.is_meta:
        raise ValueError(
            f"parameter {name!r} is on the meta device and has no numbers; load the model "
            "first, for example with model.to_empty(device=…) and load_state_dict"
        )
    kind = getattr(p, "grad_dtype", None)
    if kind not in (None, p.dtype):
        raise TypeError(
            f"parameter {name!r} is {p.dtype} and its grad_dtype is {kind}; leave grad_dtype "
            "unchanged: gradients of 16 bits are measured and combined in float32 anyway"
        )


def _refuse_sparse(model: nn.Module) -> None:
    """Raise for modules that make sparse gradients."""
    for name, module in model.named_modules():
        embeds = isinstance(module, nn.Embedding | nn.EmbeddingBag)
        if embeds and module.sparse and module.weight.requires_grad:
            raise TypeError(
                f"{name or 'the model'} is a {type(module).__name__} that makes sparse gradients, "
                "which a dense buffer cannot hold; build it with sparse=False"
            )
