"""DTensor parameters (FSDP2, tensor parallel): their local shard, and gradients like them."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from torch import Tensor, nn
from torch.distributed import is_available


def local(tensor: Tensor) -> Tensor:
    """Return the part of a tensor that this process holds: all of it unless it is a DTensor."""
    if not is_sharded(tensor):
        return tensor
    from torch.distributed.tensor import DTensor

    assert isinstance(tensor, DTensor)
    return tensor.to_local()


def like(parameter: nn.Parameter, view: Tensor) -> Tensor:
    """Return what `.grad` may hold: the view itself, or a DTensor around it."""
    if not is_sharded(parameter):
        return view
    from torch.distributed.tensor import DTensor

    assert isinstance(parameter, DTensor)
    return DTensor.from_local(
        view,
        parameter.device_mesh,
        parameter.placements,
        run_check=False,
        shape=parameter.shape,
        stride=parameter.stride(),
    )


def is_sharded(tensor: Tensor) -> bool:
    """Whether a tensor is a DTensor."""
    # The type is looked up by name first: importing torch.distributed.tensor takes a second.
    if type(tensor).__name__ != "DTensor" or not is_available():
        return False
    from torch.distributed.tensor import DTensor

    return isinstance(tensor, DTensor)


def reshard(model: nn.Module) -> None:
    """Let a model that FSDP2 has sharded show its sharded parameters.

    Between a forward pass and its backward call FSDP2 exchanges them for whole ones, which backward
    gathers again.
    """
    for module in model.modules():
        # By name, as above: importing the type takes a second.
        if any(base.__name__ == "FSDPModule" for base in type(module).__mro__):
            module.reshard()  # type: ignore[operator]


def check(parameters: Mapping[str, nn.Parameter], *, sharded: bool) -> int:
    """Raise for placements whose inner products would be counted wrongly.

    Returns
    -------
    int
        How many processes hold each shard: 1, or more with hybrid sharding (HSDP).
    """
    distributed = {name: p for name, p in parameters.items() if is_sharded(p)}
    if not distributed:
        return 1
    if not sharded:
        raise ValueError(
            f"parameter {next(iter(distributed))!r} is a DTensor, of which each process sees its "
            'own part; use distributed="sharded"'
        )
    whole = [name for name in parameters if name not in distributed]
    if whole:
        raise ValueError(
            f"parameter {whole[0]!r} is not sharded but {next(iter(distributed))!r} is, so its "
            "inner products would be counted once per process; apply fully_shard to the whole "
            "model too, not only to its blocks"
        )
    copies = {name: _copies(name, p) for name, p in distributed.items()}
    if len(set(copies.values())) > 1:
        raise ValueError(
            f"the parameters are replicated a different number of times ({copies}); place all of "
            "them in the same way"
        )
    return next(iter(copies.values()))


def _copies(name: str, parameter: nn.Parameter) -> int:
    """Return how many processes hold each shard of a parameter."""
    from torch.distributed.tensor import DTensor

    assert isinstance(parameter, DTensor)
    placements, mesh = parameter.placements, parameter.device_mesh
    if not any(placement.is_shard() for placement in placements) or any(
        placement.is_partial() for placement in placements
    ):
        raise ValueError(
            f"parameter {name!r} is a DTensor placed as {placements}, which is not a shard; shard "
            'it, or keep plain replicas and use distributed="average"'
        )
    return prod(
        mesh.size(dim) for dim, placement in enumerate(placements) if placement.is_replicate()
    )
