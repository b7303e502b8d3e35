"""Arguments that are wrong, found where they come in."""

from __future__ import annotations

from typing import Any

from torch import nn

import gradproj as gp

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


def real(model: nn.Module) -> None:
    """Raise for trainable parameters that are complex."""
    for name, p in model.named_parameters():
        if p.requires_grad and p.is_complex():
            raise TypeError(
                f"parameter {name!r} is complex ({p.dtype}) and inner products here are of real "
                "numbers; keep it as torch.view_as_real has it, or freeze it"
            )


def method(given: Any) -> None:
    """Raise for what is not a method."""
    if not isinstance(given, gp.Method):
        raise TypeError(
            f"method is a {type(given).__name__}; pass a method such as gp.Decomposed()"
        )


def task(given: int | None) -> None:
    """Raise for a number that no old task has."""
    if given is not None and given < 0:
        raise ValueError(f"task={given}; old tasks are numbered from 0 on")
