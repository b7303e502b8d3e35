"""`Place`: where a layer finds one of its parameters."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn


@dataclass(frozen=True)
class Place:
    """The location of a parameter, or of some of its rows.

    The parameter is looked up at each use, because ``model.to`` may replace it.
    """

    module: nn.Module
    name: str
    rows: slice | None = None

    @property
    def parameter(self) -> nn.Parameter | None:
        """The whole parameter, or None if the module has none of this name."""
        return self.module._parameters.get(self.name)

    def part(self, tensor: Tensor) -> Tensor:
        """Return the rows of this place, as a view of a parameter, gradient or change."""
        return tensor if self.rows is None else tensor[self.rows]
