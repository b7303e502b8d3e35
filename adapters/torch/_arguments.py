"""Checks of what users pass in, made where it comes in, and the types of the string options."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from numbers import Integral
from typing import Any, Literal, get_args

from torch import Tensor, nn

import gradproj as gp

Backend = Literal["auto", "numpy", "cupy", "torch"]
EngineName = Literal["auto", "loop", "vmap"]
Overflow = Literal["raise", "skip"]
Distributed = Literal["average", "sharded"]
When = Literal["gradient", "step"]
Policy = Literal["last", "random", "reservoir", "herding"]

CHOICES: dict[str, tuple[str | None, ...]] = {
    "backend": get_args(Backend),
    "engine": get_args(EngineName),
    "overflow": get_args(Overflow),
    "distributed": (None, *get_args(Distributed)),
    "policy": get_args(Policy),
    "when": get_args(When),
}


def choices(**given: str | None) -> None:
    """Raise for a value that its argument does not know."""
    for name, value in given.items():
        if value not in CHOICES[name]:
            known = ", ".join(repr(choice) for choice in CHOICES[name])
            raise ValueError(f"{name}={value!r} is not known; use {known}")


def _described(given: Any) -> str:
    """Return what was passed: a class where an instance is expected is a common mistake."""
    return f"the class {given.__name__}" if isinstance(given, type) else f"a {type(given).__name__}"


def model(given: Any) -> None:
    """Raise unless it is a module."""
    if not isinstance(given, nn.Module):
        raise TypeError(
            f"model is {_described(given)}; pass the torch.nn.Module itself: layers are found "
            "by the names that its parameters have there"
        )


def method(given: Any) -> None:
    """Raise unless it is a method."""
    if not isinstance(given, gp.Method):
        raise TypeError(f"method is {_described(given)}; pass a method such as gp.Decomposed()")


def task(given: Any) -> None:
    """Raise unless it is the number of an old task, or None for the new one."""
    if given is None:
        return
    if not isinstance(given, Integral):
        raise TypeError(f"task is a {type(given).__name__}; old tasks are numbered 0, 1, 2, …")
    if given < 0:
        raise ValueError(f"task={given} is invalid; old tasks are numbered 0, 1, 2, …")


def name(given: Any) -> None:
    """Raise for a task name that cannot be looked up again, such as a tensor."""
    if not isinstance(given, Integral | str):
        raise TypeError(
            f"task is a {type(given).__name__}; name it by an int or a string, such as int(task)"
        )


def count(name: str, given: Any, wanted: str) -> None:
    """Raise unless it is an integer >= 1."""
    if not isinstance(given, Integral) or given < 1:
        raise ValueError(f"{name}={given!r} is invalid: expected an integer >= 1; {wanted}")


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
    """Raise unless it is a list or another iterable of losses."""
    if isinstance(given, Tensor | Mapping) or not isinstance(given, Iterable):
        raise TypeError(
            f"old_losses is a {type(given).__name__}; pass a list with one loss per old task"
        )


def passes(given: Any) -> list[Any]:
    """Return the backward passes of the old tasks as a list; raise unless all can be called."""
    found = (
        list(given) if isinstance(given, Iterable) and not isinstance(given, Tensor) else [given]
    )
    for number, each in enumerate(found):
        if not callable(each):
            raise TypeError(
                f"old_passes[{number}] is a {type(each).__name__}; pass one function per old task "
                "that runs its backward pass, such as lambda: loss(task).backward()"
            )
    return found


def function(given: Any) -> None:
    """Raise unless it can be called with the model and a batch."""
    if not callable(given):
        raise TypeError(
            f"loss is a {type(given).__name__}; pass the function itself: loss(model, *batch) "
            "returns a scalar tensor"
        )


def batch(given: Any, name: str, advice: str = "") -> None:
    """Raise unless it is a tuple of positional loss arguments or a dict of named ones."""
    if isinstance(given, Mapping):
        return
    if isinstance(given, Tensor | str) or not isinstance(given, Iterable):
        raise TypeError(
            f"{name} is a {type(given).__name__}; pass a tuple of what the loss takes after the "
            f"model, such as (x, y), or (x,) for one thing, or a dict of named arguments{advice}"
        )


def batches(given: Any) -> list[Any]:
    """Return the old tasks' batches as a list; raise unless there is one batch per old task."""
    if isinstance(given, Tensor | str | Mapping) or not isinstance(given, Iterable):
        example = "list(old.values())" if isinstance(given, Mapping) else "[(x, y)]"
        raise TypeError(
            f"old is a {type(given).__name__}; pass a list with one batch per old task, for "
            f"example {example}, or [] without old tasks"
        )
    found = list(given)
    for number, each in enumerate(found):
        batch(each, f"old[{number}]", "; for one old task, pass a list of one batch: [(x, y)]")
    return found
