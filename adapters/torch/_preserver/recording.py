"""Recording of the inputs of layers during forward passes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from gradproj.adapters.torch._eager import uncompiled
from gradproj.adapters.torch._preserver.attention import without_fast_path
from gradproj.adapters.torch._preserver.protected import Protected


@contextmanager
def recording(layers: Iterable[Protected], mask: Tensor | None) -> Iterator[None]:
    """Add the inputs of all forward passes inside to the moments of the layers.

    Parameters
    ----------
    layers : iterable of Protected
        Layers of one model.
    mask : Tensor, optional
        Positions that count, of the leading shape of inputs that it applies to.
    """
    recorder = _Recorder(mask)
    handles = [
        module.register_forward_pre_hook(recorder.hook(layer), with_kwargs=True)
        for layer in layers
        for module in layer.uses
    ]
    with without_fast_path(), uncompiled():
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()
    recorder.check()


class _Recorder:
    def __init__(self, mask: Tensor | None) -> None:
        self.mask = mask
        self.calls = 0
        self.masked = 0

    def hook(self, layer: Protected) -> Callable[..., None]:
        """Return the forward pre-hook of a layer's module."""

        def record(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            # A checkpointed forward pass is repeated during backward: it has been counted.
            if torch._C._current_graph_task_id() != -1:
                return
            input = layer.uses[module].input(args, kwargs)
            # Autocast would round the products to half precision. Tensors made in inference mode
            # could not be changed by later passes outside of it.
            with (
                torch.inference_mode(False),
                torch.no_grad(),
                torch.autocast(input.device.type, enabled=False),
            ):
                layer.observe(module, input, self._keep(input))
            self.calls += 1

        return record

    def check(self) -> None:
        """Raise if the mask did not fit any input."""
        if self.mask is not None and self.calls and not self.masked:
            raise ValueError(
                f"mask has shape {tuple(self.mask.shape)} and no protected layer had an input that "
                "starts with these dimensions; pass one entry per position, as in an attention "
                "mask of shape (batch, tokens)"
            )

    def _keep(self, input: Tensor) -> Tensor | None:
        """Return the part of the mask for one input, or None if all of it counts."""
        mask = self.mask
        if mask is None:
            return None
        if input.shape[: mask.dim()] == mask.shape:
            self.masked += 1
            return mask.to(input.device)
        if input.shape[:1] == (mask.numel(),):  # positions of all samples in one dimension
            self.masked += 1
            return mask.flatten().to(input.device)
        return None
