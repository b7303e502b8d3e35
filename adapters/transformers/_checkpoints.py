"""Files in the checkpoint folders of a Trainer that hold the state of this package."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch


def folder_of(args: Any, state: Any) -> Path:
    """Return the folder of the checkpoint of this step."""
    return Path(args.output_dir) / f"checkpoint-{state.global_step}"


def save(folder: Path, name: str, state: dict[str, Any]) -> None:
    """Write a state into a checkpoint folder."""
    torch.save(state, folder / name)


def load(folder: Path, name: str, owner: str) -> dict[str, Any]:
    """Read a state from a checkpoint folder; raise if the folder does not have it."""
    path = folder / name
    if not path.is_file():
        raise FileNotFoundError(
            f"{path} does not exist: the checkpoint was written without {owner}, or with "
            "save_only_model=True, and training cannot be resumed from it"
        )
    state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    return state
