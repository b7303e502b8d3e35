"""Seeds derived from the one seed of a run, and the state of all global generators."""

from __future__ import annotations

import random
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

__all__ = ["derive", "generator", "global_state", "restore_global_state", "seed_globally", "seeded"]


def derive(seed: int, purpose: str) -> int:
    """Derive the seed for one purpose; different purposes give independent streams.

    Two methods with the same seed therefore start from the same weights and see the samples in
    the same order, whatever other numbers they draw.

    Examples
    --------
    >>> derive(0, "order") == derive(0, "order"), derive(0, "order") == derive(0, "weights")
    (True, False)
    """
    entropy = [seed, zlib.crc32(purpose.encode())]
    return int(np.random.SeedSequence(entropy).generate_state(1, np.uint32)[0])


def generator(seed: int, purpose: str) -> torch.Generator:
    """Make a torch generator for one purpose."""
    return torch.Generator().manual_seed(derive(seed, purpose))


def seed_globally(seed: int) -> None:
    """Seed the global generators, for layers such as dropout, which use only these."""
    torch.manual_seed(derive(seed, "torch"))
    np.random.seed(derive(seed, "numpy"))  # noqa: NPY002 - the global generator is the point
    random.seed(derive(seed, "python"))


def global_state() -> dict[str, Any]:
    """Return the state of the global generators as plain values and tensors."""
    # Annotated because get_state() is typed as a union of two forms.
    numpy: tuple[Any, ...] = tuple(np.random.get_state())  # noqa: NPY002
    name, keys, *rest = numpy
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
        "numpy": (name, torch.from_numpy(keys.astype(np.int64)), *rest),
        "python": random.getstate(),
    }


def restore_global_state(state: dict[str, Any]) -> None:
    """Set the global generators to what `global_state` returned."""
    torch.set_rng_state(state["torch"])
    if state["cuda"]:
        torch.cuda.set_rng_state_all(state["cuda"])
    name, keys, *rest = state["numpy"]
    np.random.set_state((name, keys.numpy().astype(np.uint32), *rest))  # noqa: NPY002
    version, words, gauss = state["python"]
    random.setstate((version, tuple(words), gauss))


@contextmanager
def seeded(seed: int | torch.Generator) -> Iterator[None]:
    """Seed torch's CPU generator inside the block and restore its state afterwards.

    Examples
    --------
    >>> before = torch.get_rng_state()
    >>> with seeded(3):
    ...     a = torch.rand(2)
    >>> with seeded(3):
    ...     b = torch.rand(2)
    >>> torch.equal(a, b), torch.equal(before, torch.get_rng_state())
    (True, True)
    """
    if isinstance(seed, torch.Generator):
        seed = int(torch.randint(2**63 - 1, (), generator=seed))
    with torch.random.fork_rng(devices=[]):
        # Not torch.manual_seed, which would reseed every GPU too.
        torch.default_generator.manual_seed(seed)
        yield
