"""Notes on rows, written by hand: the reasons for differences from the paper."""

from __future__ import annotations

import tomllib
from pathlib import Path

from gradproj.experiments.common.files import read_regular
from gradproj.experiments.common.registry import nearest
from gradproj.experiments.runs import presets

__all__ = ["FILE", "read_notes"]

FILE = "notes.toml"


def read_notes(path: Path) -> dict[str, str]:
    """Read `"benchmark/entry" = "text"` pairs; a missing file has none.

    The key may contain changed values, as in the name of the run's folder:
    `"mnist-permutations/ours,options.strength=0.25"`.
    """
    if not path.exists():
        return {}
    try:
        notes = tomllib.loads(read_regular(path).decode())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: {error}") from error
    for name, text in notes.items():
        if not isinstance(text, str):
            raise ValueError(f'{path}: write the note as "{name}" = "text"')
        start = presets.canonical(name.partition(",")[0])
        if start not in presets.available():
            raise ValueError(f"{path}: {nearest(start, presets.available(), 'preset')}")
    return {_canonical(name): " ".join(text.split()) for name, text in notes.items()}


def _canonical(name: str) -> str:
    start, comma, changes = name.partition(",")
    return presets.canonical(start) + comma + changes
