"""The vmap engine: the gradients of all old tasks in one vectorized pass."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.dropout import _DropoutNd

from gradproj.adapters.torch._engines.base import Batch, Engine, Evaluate, VectorizeError, call
from gradproj.adapters.torch._engines.pair_cost import is_wide
from gradproj.adapters.torch._statistics import is_observer
from gradproj.adapters.torch._step import Step

# Modules for which one vectorized pass is known to be faster than a loop on the CPU. Convolutions
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
# Setting vmap up takes as long as several small backward calls: with fewer old tasks the loop is
# faster.
_FEWEST = 10


class Vmap(Engine):
    """Calls the loss once for all old tasks; the loss must be a pure function."""

    name = "vmap"

    def obstacle(self, model: nn.Module, old: Sequence[Batch]) -> str | None:
        """Return why vmap cannot be used for a model and its batches."""
        return _obstacle(model) or _ragged(old)

    def worthwhile(self, model: nn.Module, old: Sequence[Batch] | None) -> bool:
        """Whether vmap has been measured to be faster than the loop."""
        if old is None:
            return _known_fast(model)
        # The loop keeps wide layers factored. For an MLP 784-2000-2000-10 with 20 old tasks and
        # batches of 20 it took 0.9 times the bare backward passes, and vmap 1.8 times.
        return (
            len(old) >= _FEWEST
            and _known_fast(model)
            and not is_wide(model, _rows(old[0]), len(old))
        )

    def run(self, step: Step, evaluate: Evaluate, new: Any, old: Iterable[Any]) -> Tensor:
        """Compute the old tasks' gradients at once, then the new one's."""
        batches = list(old)
        needed = [task for task in range(len(batches)) if step.needs(task)]
        if step.reduction is not None and not step.summed:
            # One of the old gradients is enough: no other batch is computed.
            step.backward(needed[0], evaluate(batches[needed[0]], needed[0]))
        else:
            assert evaluate.loss is not None
            chosen = [batches[task] for task in needed]
            try:
                gradients = _vectorized(evaluate.model, evaluate.loss, chosen)
            except RuntimeError as error:
                reason = str(error).partition("\n")[0].partition(". ")[0]
                raise VectorizeError(reason) from error
            step.write(gradients, len(chosen))
        value = evaluate(new, None)
        step.backward(None, value)
        return value.detach()


def _vectorized(
    model: nn.Module, loss: Callable[..., Tensor], old: Sequence[Batch]
) -> dict[nn.Parameter, Tensor]:
    """Return the gradients of all old tasks, each (T, *shape of its parameter)."""
    if not old:
        return {p: p.new_empty((0, *p.shape)) for p in model.parameters() if p.requires_grad}
    bound = _Bound(model, loss)
    # The model's parameters alone: a loss that is a module may have parameters of its own.
    trainable = {f"model.{n}": p for n, p in model.named_parameters() if p.requires_grad}
    # The buffers to run with: a module that assigns a new one leaves the model as it was.
    state = {name: b.detach() for name, b in bound.named_buffers()}
    both = grad_and_value(
        lambda parameters, batch: functional_call(bound, (parameters, state), (batch,))
    )
    detached = {name: p.detach() for name, p in trainable.items()}
    found, values = vmap(both, in_dims=(None, 0), randomness="different")(detached, _stacked(old))
    if values.requires_grad:
        raise RuntimeError("it uses parameters other than those of the model that it is given")
    return {p: found[name] for name, p in trainable.items()}


def _stacked(old: Sequence[Batch]) -> Any:
    """Return one batch with a leading task axis."""
    if isinstance(old[0], Mapping):
        return {name: torch.stack([batch[name] for batch in old]) for name in old[0]}  # type: ignore[call-overload]
    return tuple(torch.stack(tensors) for tensors in zip(*old, strict=True))


class _Bound(nn.Module):
    """A model and its loss as one module, whose parameters `functional_call` can exchange."""

    def __init__(self, model: nn.Module, loss: Callable[..., Tensor]) -> None:
        super().__init__()
        self.model = model
        self.loss = loss
        self.training = model.training

    def forward(self, batch: Batch) -> Tensor:
        return call(self.loss, self.model, batch)


def _obstacle(model: nn.Module) -> str | None:
    for name, module in model.named_modules():
        if isinstance(module, _NormBase) and module.training and module.track_running_stats:
            return f"{name or 'the model'} is a {type(module).__name__} that moves its statistics"
        if is_observer(module):
            return f"{name or 'the model'} is a {type(module).__name__} that moves its statistics"
        if isinstance(module, nn.RNNBase):
            return f"{name or 'the model'} is a {type(module).__name__}, which vmap does not know"
        if isinstance(module, nn.parallel.DistributedDataParallel):
            return "DistributedDataParallel averages in its own backward"
    for name, p in model.named_parameters():
        if p.requires_grad and (p._backward_hooks or p._post_accumulate_grad_hooks):
            return f"parameter {name!r} has a hook on its gradient, which vmap would pass over"
    return None


def _ragged(old: Sequence[Batch]) -> str | None:
    """Return why batches cannot be stacked."""
    kinds = set()
    for batch in old:
        items = dict(batch) if isinstance(batch, Mapping) else dict(enumerate(batch))
        for value in items.values():
            if not isinstance(value, Tensor):
                return f"an old batch holds a {type(value).__name__} beside its tensors"
        kinds.add(tuple((name, t.shape, t.dtype) for name, t in sorted(items.items())))
    if len(kinds) > 1:
        return f"the old batches differ in shape or dtype ({len(kinds)} kinds)"
    return None


def _rows(batch: Batch) -> int:
    """Estimate how many rows the linear layers of a model get from a batch."""
    for value in batch.values() if isinstance(batch, Mapping) else batch:
        if isinstance(value, Tensor) and value.dim():
            return value.numel() // (value.shape[-1] or 1 if value.is_floating_point() else 1)
    return 1


def _known_fast(model: nn.Module) -> bool:
    def fast(module: nn.Module) -> bool:
        if isinstance(module, nn.MultiheadAttention):
            return False
        # A module with parameters or buffers of its own uses them in a way that is not known here.
        own = next(module.parameters(recurse=False), None) is not None
        leaf = next(module.children(), None) is None
        own = own or next(module.buffers(recurse=False), None) is not None
        known = isinstance(module, _FAST) or type(module).__module__ == _ACTIVATIONS
        idle = isinstance(module, _DropoutNd) and not (module.training and module.p > 0)
        return known or idle or not (own or leaf)

    return all(fast(module) for module in model.modules())
