"""Ways to compute the old tasks' gradients: one backward after the other, or all at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.dropout import _DropoutNd

Batches = Sequence[Sequence[Any]]

# Modules for which one vectorised pass is known to be faster than a loop on the CPU. Convolutions
# are not among them: vmap turns them into grouped ones, which are slower than the loop.
_FAST = (
    nn.Linear,
    nn.Bilinear,
    nn.Embedding,
    nn.LayerNorm,
    nn.RMSNorm,
    nn.Flatten,
    nn.Unflatten,
    nn.Identity,
)
_ACTIVATIONS = nn.ReLU.__module__
# Setting vmap up takes as long as several small backwards: with fewer old tasks the loop is faster.
_FEWEST = 10


def choose(wanted: str, model: nn.Module, old: Batches | None = None) -> str:
    """Return "loop" or "vmap"; refuse a vmap that cannot work and say why.

    Without batches the answer is for many old tasks with batches of one shape.
    """
    if wanted == "loop" or (wanted == "auto" and old is not None and len(old) < _FEWEST):
        return "loop"
    obstacle = _obstacle(model) or _ragged(old or ())
    if wanted == "vmap":
        if obstacle:
            raise ValueError(f'engine="vmap" cannot be used: {obstacle}; use engine="loop"')
        return "vmap"
    return "loop" if obstacle or not _known_fast(model) else "vmap"


def vectorised(
    model: nn.Module, loss: Callable[..., Tensor], old: Batches
) -> dict[nn.Parameter, Tensor]:
    """Gradients of all old tasks in one pass, each (T, *shape of its parameter)."""
    if not old:
        return {p: p.new_empty((0, *p.shape)) for p in model.parameters() if p.requires_grad}
    bound = _Bound(model, loss)
    # The model's alone: a loss that is a module may have parameters of its own.
    trainable = {f"model.{n}": p for n, p in model.named_parameters() if p.requires_grad}
    state = bound.state()
    both = grad_and_value(
        lambda parameters, *batch: functional_call(bound, (parameters, state), batch)
    )
    stacked = _stacked(old)
    detached = {name: p.detach() for name, p in trainable.items()}
    found, values = vmap(both, in_dims=(None, *[0] * len(stacked)), randomness="different")(
        detached, *stacked
    )
    if values.requires_grad:
        raise RuntimeError("it uses parameters other than those of the model that it is given")
    return {p: found[name] for name, p in trainable.items()}


def total(model: nn.Module, loss: Callable[..., Tensor], old: Batches) -> Tensor:
    """Sum of the losses of all old tasks, in one pass; its gradient is the sum of theirs."""
    bound = _Bound(model, loss)
    state = bound.state()
    each = vmap(lambda *batch: functional_call(bound, state, batch), randomness="different")
    values: Tensor = each(*_stacked(old))
    return values.sum()


def _stacked(old: Batches) -> list[Tensor]:
    return [torch.stack(tensors) for tensors in zip(*old, strict=True)]


class _Bound(nn.Module):
    """A model and its loss as one module, whose parameters `functional_call` can exchange."""

    def __init__(self, model: nn.Module, loss: Callable[..., Tensor]) -> None:
        super().__init__()
        self.model = model
        self.loss = loss
        self.training = model.training

    def forward(self, *batch: Tensor) -> Tensor:
        return self.loss(self.model, *batch)

    def state(self) -> dict[str, Tensor]:
        """The buffers to run with: a module that sets one anew leaves the model as it was."""
        return {name: b.detach() for name, b in self.named_buffers()}


def _obstacle(model: nn.Module) -> str | None:
    for name, module in model.named_modules():
        if isinstance(module, _NormBase) and module.training and module.track_running_stats:
            return f"{name or 'the model'} is a {type(module).__name__} that moves its statistics"
        if isinstance(module, nn.RNNBase):
            return f"{name or 'the model'} is a {type(module).__name__}, which vmap does not know"
        if isinstance(module, nn.parallel.DistributedDataParallel):
            return "DistributedDataParallel averages in its own backward"
    for name, p in model.named_parameters():
        if p.requires_grad and (p._backward_hooks or p._post_accumulate_grad_hooks):
            return f"parameter {name!r} has a hook on its gradient, which vmap would pass over"
    return None


def _ragged(old: Batches) -> str | None:
    for batch in old:
        for value in batch:
            if not isinstance(value, Tensor):
                return f"an old batch holds a {type(value).__name__} beside its tensors"
    shapes = {tuple((t.shape, t.dtype) for t in batch) for batch in old}
    if len(shapes) > 1:
        return f"the old batches differ in shape or dtype ({len(shapes)} kinds)"
    return None


def _known_fast(model: nn.Module) -> bool:
    def fast(module: nn.Module) -> bool:
        if isinstance(module, nn.MultiheadAttention):
            return False
        # A module with parameters or buffers of its own does something with them that we do not
        # know.
        own = next(module.parameters(recurse=False), None) is not None
        leaf = next(module.children(), None) is None
        own = own or next(module.buffers(recurse=False), None) is not None
        known = isinstance(module, _FAST) or type(module).__module__ == _ACTIVATIONS
        idle = isinstance(module, _DropoutNd) and not (module.training and module.p > 0)
        return known or idle or not (own or leaf)

    return all(fast(module) for module in model.modules())


def refuse_sparse(model: nn.Module) -> None:
    """Raise for modules that make sparse gradients."""
    for name, module in model.named_modules():
        embeds = isinstance(module, nn.Embedding | nn.EmbeddingBag)
        if embeds and module.sparse and module.weight.requires_grad:
            raise TypeError(
                f"{name or 'the model'} is a {type(module).__name__} that makes sparse gradients, "
                "which have no place in a dense buffer; build it with sparse=False"
            )
