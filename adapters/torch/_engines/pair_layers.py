"""Linear and embedding layers that record pairs in place of a weight gradient."""

from __future__ import annotations

from collections.abc import Callable
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from gradproj.adapters.torch._engines.pairs import Tape

# Wrappers that copy modules or that need every gradient to reach its parameter.
_WRAPPERS = {"DistributedDataParallel", "DataParallel", "FullyShardedDataParallel"}


class Call:
    """A replacement for `forward` of one module. It stays the same object in all steps."""

    def __init__(self, tape: Tape, module: nn.Linear | nn.Embedding) -> None:
        self.tape = tape
        self.module = module
        parameter = module.weight
        assert isinstance(parameter, nn.Parameter)
        self.parameter = parameter
        self.embedding = isinstance(module, nn.Embedding)
        self.plain: Callable[[Tensor], Tensor] = MethodType(type(module).forward, module)
        self.padding = module.padding_idx if isinstance(module, nn.Embedding) else None
        self.rows = 0

    def __reduce__(self) -> tuple[Any, ...]:
        # A model that a loss copies during a step gets the original forward of its own modules.
        return getattr, (self.module, "forward")

    def available(self) -> bool:
        """Return whether the module can be replaced at present."""
        module, p = self.module, self.parameter
        hooked = p._backward_hooks or p._post_accumulate_grad_hooks
        return (
            p.requires_grad
            and not hooked
            and module._parameters.get("weight") is p
            and "forward" not in module.__dict__
            and module._is_full_backward_hook is not False
        )

    def install(self) -> None:
        """Replace `forward`."""
        self.rows = 0
        self.module.__dict__["forward"] = self

    def remove(self) -> None:
        """Restore `forward`."""
        if self.module.__dict__.get("forward") is self:
            del self.module.__dict__["forward"]

    def __call__(self, input: Tensor) -> Tensor:
        if torch.compiler.is_compiling() or not self._eager(input):
            return self.plain(input)
        if not self.tape.open:  # a repeated forward pass of a checkpoint does not count
            self.rows += input.numel() if self.embedding else input.numel() // input.shape[-1]
        if not torch.is_grad_enabled():
            return self.plain(input)
        if self.embedding:
            return _apply(_Embedding, input, self.parameter, self)
        tensors, kind = [input, self.parameter, self.module._parameters["bias"]], input.device.type
        if not torch.is_autocast_enabled(kind):
            return _apply(_Linear, *tensors, self)
        dtype = torch.get_autocast_dtype(kind)
        with torch.autocast(kind, enabled=False):
            return _apply(_Linear, *(t if t is None else _cast(t, dtype) for t in tensors), self)

    def _eager(self, input: Tensor) -> bool:
        """Return whether this is a plain call on a plain tensor with the module's own weight."""
        return (
            self.module._parameters["weight"] is self.parameter
            and type(input) in (Tensor, nn.Parameter)
            and input.layout == torch.strided
            and input.dim() > 0
            and not torch._C._are_functorch_transforms_active()
        )


class _Linear(torch.autograd.Function):
    """`F.linear` that hands its input and output gradient over instead of a weight gradient."""

    @staticmethod
    def forward(ctx: Any, input: Tensor, weight: Tensor, bias: Tensor | None, call: Call) -> Tensor:
        ctx.save_for_backward(input, weight)
        ctx.call = call
        return functional.linear(input, weight, bias)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (D,) = grads
        input, weight = ctx.saved_tensors
        call: Call = ctx.call
        for_input = D @ weight if ctx.needs_input_grad[0] else None
        rows = D.reshape(-1, D.shape[-1])
        for_weight = None
        if call.tape.wants(call.parameter):
            # A batch of the caller may be overwritten by the next one; a hidden layer is not.
            A = _kept(input, copy=input.grad_fn is None).reshape(-1, input.shape[-1])
            call.tape.record(call.parameter, A, _kept(rows))
        elif ctx.needs_input_grad[1]:
            for_weight = rows.T @ input.reshape(-1, input.shape[-1])
        for_bias = rows.sum(0) if ctx.needs_input_grad[2] else None
        return for_input, for_weight, for_bias, None


class _Embedding(torch.autograd.Function):
    """`F.embedding` that hands its indices and output gradient over."""

    @staticmethod
    def forward(ctx: Any, input: Tensor, weight: Tensor, call: Call) -> Tensor:
        ctx.save_for_backward(input)
        ctx.call = call
        return functional.embedding(input, weight, call.padding)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (D,) = grads
        (input,) = ctx.saved_tensors
        call: Call = ctx.call
        padding = call.padding
        if call.tape.wants(call.parameter):
            indices, rows = input.reshape(-1).to(torch.int64, copy=True), D.flatten(0, -2)
            if padding is not None:
                used = indices != padding
                indices, rows = indices[used], rows[used]
            call.tape.record(call.parameter, indices, _kept(rows))
            return None, None, None
        for_weight = torch.ops.aten.embedding_dense_backward(
            D, input, len(call.parameter), -1 if padding is None else padding, False
        )
        return None, for_weight, None


def _apply(function: type[torch.autograd.Function], *args: object) -> Tensor:
    found: Tensor = function.apply(*args)  # type: ignore[no-untyped-call]
    return found


def supported(model: nn.Module) -> list[nn.Linear | nn.Embedding]:
    """Return the modules whose weight gradients can be factored."""
    found: list[nn.Linear | nn.Embedding] = []
    modules, seen = [model], {model}
    for module in modules:
        # Compiled code has its own forward pass, and these wrappers their own backward pass.
        compiled = type(module).__name__ == "OptimizedModule" or module._compiled_call_impl
        if compiled or type(module).__name__ in _WRAPPERS:
            # Submodules can also be called on their own; still, leave them alone.
            seen.update(module.modules())
            continue
        children = [m for m in module.children() if m not in seen]
        seen.update(children)
        modules += children
        if isinstance(module, nn.Linear | nn.Embedding) and _is_supported(module):
            found.append(module)
    return found


def _is_supported(module: nn.Linear | nn.Embedding) -> bool:
    p = module._parameters.get("weight")
    # The exact types: subclasses have a forward of their own, and DTensor is a sharded parameter.
    plain = type(p) is nn.Parameter and p.layout == torch.strided
    if p is None or not plain or not p.dtype.is_floating_point or p.device.type == "mps":
        return False  # mps has no float64
    if type(module) is nn.Embedding:
        return not (module.sparse or module.scale_grad_by_freq) and module.max_norm is None
    return type(module) is nn.Linear


def _cast(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """Cast as autocast does: all floating-point dtypes except float64."""
    eligible = tensor.is_floating_point() and tensor.dtype != torch.float64
    return tensor.to(dtype) if eligible else tensor


def _kept(tensor: Tensor, *, copy: bool = False) -> Tensor:
    """Detach a tensor. Copy it on demand, and if it would keep a much larger tensor alive."""
    size = tensor.numel() * tensor.element_size()
    copy = copy or tensor.untyped_storage().nbytes() > 2 * size
    return tensor.detach().clone() if copy else tensor.detach()
