"""The array library that measures the gradients, and its access to the buffer without a copy."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor


def choose_backend(wanted: str, device: torch.device) -> str:
    """Return the library that "auto" means on a device; raise for one that cannot read its memory.

    >>> choose_backend("auto", torch.device("cpu"))
    'numpy'
    """
    readable = {"cpu": ("numpy", "torch"), "cuda": ("cupy", "torch")}.get(device.type, ("torch",))
    if wanted == "auto":
        return readable[0] if readable[0] != "cupy" or find_spec("cupy") else "torch"
    if wanted not in readable:
        raise ValueError(
            f"backend={wanted!r} cannot read gradients on {device}; use "
            + " or ".join(repr(name) for name in ("auto", *readable))
        )
    return wanted


def as_array(rows: Tensor, backend: str) -> Any:
    """Hand rows to the array library without a copy."""
    if backend == "numpy":
        # Not np.from_dlpack: NumPy takes the memory of older torch versions (2.6) for read-only.
        return rows.numpy()
    if backend == "cupy":
        import cupy

        return cupy.from_dlpack(rows)
    return rows


@contextmanager
def on_torch_stream(backend: str, device: torch.device) -> Iterator[None]:
    """Run CuPy's work on torch's current stream, so that it is ordered after torch's writes.

    DLPack synchronises the two libraries only when the buffer is handed over, once per allocation.
    """
    if backend != "cupy":
        yield
        return
    import cupy

    stream = torch.cuda.current_stream(device)
    # CuPy keeps one current stream per device, and sets that of the current device.
    with cupy.cuda.Device(stream.device_index), cupy.cuda.Stream.from_external(stream):
        yield
