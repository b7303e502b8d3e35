"""The memory report of a preserver."""

from __future__ import annotations


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

    @property
    def total(self) -> str:
        """The sum over all layers, with its unit."""
        return readable(sum(self.values()))

    def __str__(self) -> str:
        rows = [*((name, readable(size)) for name, size in self.items()), ("total", self.total)]
        names, sizes = (max(len(row[column]) for row in rows) for column in (0, 1))
        return "\n".join(f"{name:<{names}}  {size:>{sizes}}" for name, size in rows)


def readable(size: int) -> str:
    """Format a number of bytes.

    >>> readable(999), readable(1_500_000)
    ('999 B', '1.50 MB')
    """
    units = ("B", "kB", "MB", "GB")
    power = min(len(f"{size}") - 1, 9) // 3
    return f"{size / 1000**power:.{2 if power else 0}f} {units[power]}"
