"""The state of a projector between steps, as plain numbers and names."""

from __future__ import annotations

from typing import Any

import gradproj as gp

Names = dict[str, tuple[str, ...]]


def save(method: gp.Method, layers: Names) -> dict[str, Any]:
    """Return the layers, and the state of the method."""
    return {
        "layers": {name: list(members) for name, members in layers.items()},
        "method": method.state_dict(),
    }


def load(state: dict[str, Any], method: gp.Method, layers: Names) -> None:
    """Restore the state of the method; raise if it belongs to another model or method."""
    mine = {name: list(members) for name, members in layers.items()}
    if state["layers"] != mine:
        raise ValueError(
            f"state has layers {state['layers']} and the projector {mine}; build the model "
            "and the projector as they were"
        )
    method.load_state_dict(state["method"])
