"""Optimizer hooks by which a preserver works inside of any training loop."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any
from weakref import ref

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from gradproj.adapters.torch._preserver.protected import Protected

Project = Callable[[Protected, Tensor | None, Tensor | None], None]


class Handle:
    """The hooks in one optimizer.

    It is also a context manager that removes the hooks on leaving.
    """

    def __init__(self, optimizer: Optimizer, hooks: Iterable[Any]) -> None:
        self._optimizer = ref(optimizer)
        self._hooks = list(hooks)

    @property
    def optimizer(self) -> Optimizer | None:
        """The optimizer, as long as it exists and has the hooks."""
        return self._optimizer() if self._hooks else None

    def remove(self) -> None:
        """Remove the hooks, so that steps of the optimizer are no longer changed."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    def __repr__(self) -> str:
        optimizer = self.optimizer
        if optimizer is None:
            return "Handle(removed)"
        return f"Handle(attached to {type(optimizer).__name__})"

    def __enter__(self) -> Handle:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()


def unwrapped(optimizer: Any) -> Optimizer:
    """Return the optimizer inside of the wrappers of training libraries, or raise."""
    inner = optimizer
    # Wrappers either are not optimizers, or inherit from Optimizer without its __init__.
    while not (isinstance(inner, Optimizer) and "defaults" in vars(inner)):
        inner = getattr(inner, "optimizer", None)
        if inner is None:
            raise TypeError(
                f"optimizer is a {type(optimizer).__name__}, whose step() calls no hooks; pass the "
                "torch.optim.Optimizer itself"
            )
    return inner


def on_gradient(optimizer: Optimizer, apply: Callable[[set[nn.Parameter]], None]) -> Handle:
    """Let `apply` change the gradients of the optimizer's parameters before each step."""

    def before(
        optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
        if closure is None:
            if not _skipped(optimizer):
                apply(_parameters(optimizer))
            return None

        # The closure computes the gradients, once or several times per step.
        def projected() -> Any:
            loss = closure()
            apply(_parameters(optimizer))
            return loss

        return (args[0], *args[2:]), {**kwargs, "closure": projected}

    return Handle(optimizer, [optimizer.register_step_pre_hook(before)])


def on_step(optimizer: Optimizer, layers: Iterable[Protected], project: Project) -> Handle:
    """Let `project` change what each step of the optimizer adds to its parameters."""
    layers = list(layers)
    copies: dict[nn.Parameter, Tensor] = {}

    def before(optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        del args, kwargs
        mine = _parameters(optimizer)
        copies.clear()
        for layer in layers:
            for p in layer.parameters.values():
                if layer.old.known and p.requires_grad and p in mine:
                    copies[p] = p.detach().clone()

    @torch.no_grad()
    def after(optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        del optimizer, args, kwargs
        for layer in layers:
            changed = {
                name: p
                for name, p in layer.parameters.items()
                if p in copies and p.grad is not None
            }
            if not changed:
                continue
            new = layer.parts(changed)
            old = layer.parts({name: copies[p] for name, p in changed.items()})
            changes = {name: new[name] - old[name] for name in changed}
            project(layer, changes.get("weight"), changes.get("bias"))
            for name, change in changes.items():
                new[name].copy_(old[name] + change)
        copies.clear()

    hooks = [optimizer.register_step_pre_hook(before), optimizer.register_step_post_hook(after)]
    return Handle(optimizer, hooks)


def _skipped(optimizer: Optimizer) -> bool:
    """Whether a gradient scaler has found an overflow, for which a fused optimizer does nothing.

    The gradients of other optimizers are unscaled first, and their steps are not even called. Fused
    ones unscale by themselves: the projection is linear, so that the scale does not matter.
    """
    found = getattr(optimizer, "found_inf", None)
    return found is not None and bool(found)


def _parameters(optimizer: Optimizer) -> set[nn.Parameter]:
    return {p for group in optimizer.param_groups for p in group["params"]}
