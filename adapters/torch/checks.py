"""Arguments that are wrong, found where they come in."""

from __future__ import annotations

from typing import Any

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
