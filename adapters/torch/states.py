"""What a projector remembers from one step to the next, as plain numbers and names."""

from __future__ import annotations

from typing import Any

import gradproj as gp

Names = dict[str, tuple[str, ...]]


def save(method: gp.Method, layers: Names) -> dict[str, Any]:
    """Return the layers, and the state of the method's generator if it draws."""
    generator = getattr(method, "generator", None)
    return {
        "layers": {name: list(members) for name, members in layers.items()},
        "generator": None if generator is None else generator.bit_generator.state,
    }


def load(state: dict[str, Any], method: gp.Method, layers: Names) -> None:
    """Set the method's generator to a state; raise if the state is of something else."""
    generator = getattr(method, "generator", None)
    if (generator is None) != (state["generator"] is None):
        raise ValueError(
            f"state is of another method than {method!r}; build the projector as it was"
        )
    mine = {name: list(members) for name, members in layers.items()}
    if state["layers"] != mine:
        raise ValueError(
            f"state has layers {state['layers']} and the projector {mine}; build the model "
            "and the projector as they were"
        )
    if generator is not None:
        generator.bit_generator.state = state["generator"]
