"""Sums over the rows of inputs: their products, squares, or a sketch of a few rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gradproj._arrays import Array, namespace
from gradproj._preserve.low_rank import LowRankMoments, leading, with_trace
from gradproj._preserve.matrices import in_32_bits, pieces, resolution, transposed, wide


class ProductSum:
    """The sum of aᵀa in float64, from products in the dtype of the rows."""

    # Small batches are collected up to this number of rows: the product of ten rows takes as long
    # as adding it to the sum. Larger ones are cut into pieces of the second size, so that the error
    # of a float32 product does not grow with the number of rows.
    collected = 256
    piece = 2048
    # The number of axes that the rows have and the sum does not.
    missing = 0

    def __init__(self) -> None:
        self.total: Array = None

    def add_rows(self, rows: Array) -> None:
        """Add the products of rows (..., rows, in)."""
        self.add(transposed(rows) @ rows)

    def add(self, part: Array) -> None:
        """Add a sum over other rows."""
        xp = namespace(part)
        if self.total is None:
            added = wide(xp, part)
            # A copy: the caller may change its array.
            self.total = namespace(added).asarray(added, copy=True)
        else:
            # The sum widens the part by itself, without a copy, unless it is on the host.
            self.total = self.total + (part if namespace(self.total) is xp else wide(xp, part))

    def merge(self, other: ProductSum) -> None:
        """Add the sum over the rows of another batch or process."""
        self.add(other.total)

    def mean(self, count: int) -> Array:
        """Return the sum over a number, in float64."""
        return self.total / count

    def scaled(self) -> Array:
        """Return the sum over its mean eigenvalue, in float64; zero stays zero."""
        mean = namespace(self.total).mean(self._diagonal(), axis=-1)
        return self.total / self._spread(_or_one(mean))

    def _diagonal(self) -> Array:
        return namespace(self.total).linalg.diagonal(self.total)

    def _spread(self, numbers: Array) -> Array:
        """Return one number per problem in a shape that multiplies all of its moments."""
        return numbers[..., None, None]

    def state(self) -> dict[str, Array]:
        """Return the arrays of the state."""
        return {"total": self.total}

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore the state."""
        if "total" not in state or state["total"].ndim != state["like"].ndim - self.missing:
            raise _other_kind(state)
        self.add(state["total"])


class SquareSum(ProductSum):
    """The sum of the squares, which is the diagonal of aᵀa."""

    collected = 0
    missing = 1

    def add_rows(self, rows: Array) -> None:
        """Add the squares of rows (rows, in)."""
        self.add(namespace(rows).sum(rows * rows, axis=0))

    def _diagonal(self) -> Array:
        return self.total

    def _spread(self, numbers: Array) -> Array:
        return numbers


class Sketch:
    """At most 2k rows whose products stand for those of all rows ("frequent directions").

    When there are 2k rows, k orthogonal rows replace them (Ghashami et al. 2016). The squared
    length of the first row that is left out is subtracted from the squared length of each row that
    stays. Without this, late rows would never count against a long sum of earlier rows.

    `removed` is the sum of these subtractions. It is added back at the end ("compensated", Desai et
    al. 2016), which is exact for directions that were present in all batches. The trace is exact.
    """

    def __init__(self, rank: int) -> None:
        self.collected = self.piece = self.rank = rank
        self.rows: Array = None
        self.trace: Array
        self.removed: Array

    def add_rows(self, rows: Array) -> None:
        """Add rows (..., rows, in), as many as the rank at most."""
        added = wide(namespace(rows), rows)
        xp = namespace(added)
        # A copy: the caller may change its array.
        added = xp.asarray(added, copy=True)
        # NumPy turns an array without axes into a number.
        trace = xp.asarray(xp.sum(added * added, axis=(-2, -1)))
        self._append(added, trace, xp.zeros_like(trace))

    def _append(self, rows: Array, trace: Array, removed: Array) -> None:
        if self.rows is None:
            self.rows, self.trace, self.removed = rows, trace, removed
        else:
            xp = namespace(rows)
            self.rows = xp.concat([self.rows, rows], axis=-2)
            self.trace, self.removed = self.trace + trace, self.removed + removed
        if self.rows.shape[-2] >= 2 * self.rank:
            self._compress()

    def _compress(self) -> None:
        xp, rows = namespace(self.rows), self.rows
        products = rows @ transposed(rows)
        values, vectors = xp.linalg.eigh((products + transposed(products)) / 2)
        values, vectors = xp.flip(values, axis=-1), xp.flip(vectors, axis=-1)
        zero = xp.zeros_like(values[..., :1])
        # A zero eigenvalue with a rounding error must not shorten the other rows.
        noise = resolution(values[..., :1], float(xp.finfo(values.dtype).eps))
        values = xp.where(values > noise, values, zero)
        taken = values[..., self.rank : self.rank + 1]
        kept = values[..., : self.rank]
        # Rows of length zero stay: a division by zero would make them NaN.
        lengths = xp.where(kept > 0, kept, xp.ones_like(kept))
        factors = xp.sqrt(xp.where(kept > 0, kept - taken, zero) / lengths)
        self.rows = factors[..., None] * (transposed(vectors[..., : self.rank]) @ rows)
        self.removed = self.removed + taken[..., 0]

    def merge(self, other: Sketch) -> None:
        """Add the sketch of the rows of another batch or process."""
        self._append(other.rows, other.trace, other.removed)

    def mean(self, count: int) -> LowRankMoments:
        """Return the moments of the sketch over a number, in float64."""
        xp, rows = namespace(self.rows), self.rows
        vectors, values = leading(rows, xp.ones_like(rows[..., 0]), self.rank)
        values = (values + self.removed[..., None]) / count
        return with_trace(vectors, values, self.trace / count)

    def scaled(self) -> LowRankMoments:
        """Return the moments over their mean eigenvalue, in float64; zero stays zero."""
        xp, mean = namespace(self.rows), _or_one(self.trace / self.rows.shape[-1])
        S = self.mean(1)
        return LowRankMoments(S.vectors, S.values / mean[..., None], xp.asarray(S.rest / mean))

    def state(self) -> dict[str, Array]:
        """Return the arrays of the state."""
        return {"rows": self.rows, "trace": self.trace, "removed": self.removed}

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore the state."""
        if "rows" not in state:
            raise _other_kind(state)
        parts = (state[name] for name in ("rows", "trace", "removed"))
        self._append(*(wide(namespace(x), x) for x in parts))


Sums = ProductSum | Sketch


class Collector:
    """A sum over rows that arrive in batches of any size: collects small ones, cuts large ones."""

    def __init__(self, rank: int | None, diagonal: bool) -> None:
        self._sums: Sums = Sketch(rank) if rank else SquareSum() if diagonal else ProductSum()
        self._waiting: list[Array] = []

    def add(self, a: Array) -> None:
        """Add rows, or keep a copy of them until there are enough."""
        if a.shape[-2] < self._sums.collected:
            self._waiting.append(namespace(a).asarray(a, copy=True))
            if sum(x.shape[-2] for x in self._waiting) >= self._sums.collected:
                self.sums()
        else:
            self._cut(a)

    def sums(self) -> Any:
        """Add all collected rows to the sum and return it."""
        if self._waiting:
            rows = namespace(self._waiting[0]).concat(self._waiting, axis=-2)
            self._waiting = []
            self._cut(rows)
        return self._sums

    def _cut(self, rows: Array) -> None:
        for piece in pieces(rows, self._sums.piece):
            self._sums.add_rows(in_32_bits(piece))


def _or_one(mean: Array) -> Array:
    xp = namespace(mean)
    return xp.where(mean > 0, mean, xp.ones_like(mean))


def _other_kind(state: Mapping[str, Any]) -> ValueError:
    shapes = {name: tuple(x.shape) for name, x in state.items() if hasattr(x, "shape")}
    return ValueError(
        f"the state has arrays of shapes {shapes}, which are of another kind of moments: make the "
        "moments with the same rank and diagonal"
    )
