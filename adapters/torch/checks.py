"""Arguments that are wrong, found where they come in."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from numbers import Integral
from typing import Any

from torch import Tensor, nn

import gradproj as gp
from gradproj.adapters.torch import shards

CHOICES = {
    "backend": ("auto", "numpy", "cupy", "torch"),
    "engine": ("auto", "loop", "vmap"),
    "overflow": ("raise", "skip"),
    "distributed": (None, "average", "sharded"),
}


def choices(**given: str | None) -> None:
    """Raise for a value that its argument does not know."""
    for name, value in given.items():
        if value not in CHOICES[name]:
            known = ", ".join(repr(choice) for choice in CHOICES[name])
            raise ValueError(f"{name}={value!r} is not known; use {known}")


def model(given: Any) -> None:
    """Raise for what is not a module."""
    if not isinstance(given, nn.Module):
        raise TypeError(
            f"model is a {type(given).__name__}; pass the torch.nn.Module itself: layers are found "
            "by the names that its parameters have there"
        )


def parameters(model: nn.Module, *, sharded: bool) -> None:
    """Raise for trainable parameters whose gradients could not be measured rightly."""
    for name, p in model.named_parameters():
        if not p.requires_grad:
            continue
        if p.is_complex():
            raise TypeError(
                f"parameter {name!r} is complex ({p.dtype}) and inner products here are of real "
                "numbers; keep it as torch.view_as_real has it, or freeze it"
            )
        if p.is_meta:
            raise ValueError(
                f"parameter {name!r} is on the meta device and has no numbers; load the model "
                "first, for example with model.to_empty(device=…) and load_state_dict"
            )
        kind = getattr(p, "grad_dtype", None)
        if kind not in (None, p.dtype):
            raise TypeError(
                f"parameter {name!r} is {p.dtype} and its grad_dtype {kind}; leave grad_dtype as "
                "it is: gradients of 16 bits are measured and combined in float32 anyway"
            )
        if shards.is_sharded(p) and not sharded:
            raise ValueError(
                f"parameter {name!r} is a DTensor, of which each process sees its own part; use "
                'distributed="sharded"'
            )


def method(given: Any) -> None:
    """Raise for what is not a method."""
    if not isinstance(given, gp.Method):
        raise TypeError(
            f"method is a {type(given).__name__}; pass a method such as gp.Decomposed()"
        )


def task(given: Any) -> None:
    """Raise for a number that no old task has."""
    if given is None:
        return
    if not isinstance(given, Integral):
        raise TypeError(f"task is a {type(given).__name__}; old tasks are numbered from 0 on")
    if given < 0:
        raise ValueError(f"task={given}; old tasks are numbered from 0 on")


def name(given: Any) -> None:
    """Raise for a task's name that would not be found again, such as a tensor."""
    if not isinstance(given, Integral | str):
        raise TypeError(
            f"task is a {type(given).__name__}; name it by an int or a string, such as int(task)"
        )


def count(name: str, given: Any, wanted: str) -> None:
    """Raise unless it is a whole number from 1 on."""
    if not isinstance(given, Integral) or given < 1:
        raise ValueError(f"{name}={given}; {wanted}, a whole number")


def loss(given: Any, name: str) -> None:
    """Raise for a value that cannot be run backward."""
    if not isinstance(given, Tensor):
        raise TypeError(
            f"{name} is a {type(given).__name__}; pass a scalar tensor or a function that returns "
            "one"
        )
    if given.numel() != 1:
        raise ValueError(
            f"{name} has shape {tuple(given.shape)}; a loss is one number, such as its mean()"
        )
    if not given.requires_grad:
        raise ValueError(
            f"{name} does not depend on a parameter that requires a gradient; compute it from the "
            "model's outputs, outside torch.no_grad()"
        )


def losses(given: Any) -> None:
    """Raise for what cannot be gone through."""
    if isinstance(given, Tensor) or not isinstance(given, Iterable):
        raise TypeError(
            f"old_losses is a {type(given).__name__}; pass a list with one loss an old task"
        )


def batch(given: Any, name: str) -> None:
    """Raise for what would fall apart when it is handed to the loss."""
    if isinstance(given, Tensor | Mapping | str) or not isinstance(given, Iterable):
        raise TypeError(
            f"{name} is a {type(given).__name__}; pass a tuple of what the loss takes after the "
            "model, such as (x, y), or (x,) for one thing"
        )
