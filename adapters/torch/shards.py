"""DTensor parameters (FSDP2, tensor parallel): their local shard, and gradients like them."""

from __future__ import annotations

from torch import Tensor, nn
from torch.distributed import is_available


def local(tensor: Tensor) -> Tensor:
    """Return the part of a tensor that this process holds: all of it unless it is a DTensor."""
    if not is_sharded(tensor):
        return tensor
    from torch.distributed.tensor import DTensor

    assert isinstance(tensor, DTensor)
    if not any(placement.is_shard() for placement in tensor.placements):
        raise ValueError(
            f"a parameter of shape {tuple(tensor.shape)} is a DTensor placed as "
            f"{tensor.placements}; its inner products would be counted once a rank: shard it"
        )
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
