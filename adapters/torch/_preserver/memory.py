"""The memory report of a preserver."""

from __future__ import annotations

import warnings
from collections.abc import Iterable

from gradproj.adapters.torch._preserver.old_inputs import OldInputs
from gradproj.adapters.torch._preserver.protected import Protected

# Inputs of a layer up to which a square matrix is kept without a word: 268 MB in float32.
_WIDE = 8192


class MemoryReport(dict[str, int]):
    """Bytes per layer; prints as a table.

    Examples
    --------
    >>> report = MemoryReport({"encoder": 2_400_000, "head": 800})
    >>> report.total
    '2.40 MB'
    >>> print(report)
    encoder  2.40 MB
    head       800 B
    total    2.40 MB
    """

    @classmethod
    def of(cls, layers: Iterable[Protected]) -> MemoryReport:
        """Count the memory of each layer; old inputs that layers share count for the first one."""
        report, seen = cls(), set[OldInputs]()
        for layer in layers:
            tensors = [*layer.observed(), *(() if layer.old in seen else layer.old.tensors())]
            report[layer.name] = sum(t.numel() * t.element_size() for t in tensors)
            seen.add(layer.old)
        return report

    @property
    def total(self) -> str:
        """The sum over all layers, with its unit."""
        return readable(sum(self.values()))

    def __str__(self) -> str:
        rows = [*((name, readable(size)) for name, size in self.items()), ("total", self.total)]
        names, sizes = (max(len(row[column]) for row in rows) for column in (0, 1))
        return "\n".join(f"{name:<{names}}  {size:>{sizes}}" for name, size in rows)


def warn_of_wide(layers: Iterable[Protected]) -> None:
    """Warn of layers whose second moments are large; those of embeddings are a diagonal."""
    for layer in layers:
        if layer.width > _WIDE and not layer.moments.diagonal:
            size = readable(4 * layer.width**2)
            warnings.warn(
                f"layer {layer.name!r} has {layer.width} inputs: its second moments take {size}, "
                "its factor as much, and twice that while a task is observed; pass rank=256 to "
                "keep the leading directions alone, or exclude it",
                stacklevel=3,
            )


def readable(size: int) -> str:
    """Format a number of bytes.

    >>> readable(999), readable(1_500_000)
    ('999 B', '1.50 MB')
    """
    units = ("B", "kB", "MB", "GB")
    power = min(len(f"{size}") - 1, 9) // 3
    return f"{size / 1000**power:.{2 if power else 0}f} {units[power]}"
