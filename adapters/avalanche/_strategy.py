"""Access to an Avalanche strategy that both plugins share."""

from __future__ import annotations

from typing import Any

from avalanche.benchmarks import OnlineCLExperience


class Boundaries:
    """Finds where an experience ends.

    An online stream splits an experience into parts, which are not tasks of their own.
    """

    def __init__(self) -> None:
        self._parts = 0

    def ended(self, strategy: Any, owner: str) -> Any:
        """Return the experience that ends with this call, or None; call it once per part."""
        experience = strategy.experience
        if not isinstance(experience, OnlineCLExperience):
            return experience
        if not experience.access_task_boundaries:
            raise ValueError(
                f"the online stream hides where experiences end, and {owner} needs to know: build "
                "it with access_task_boundaries=True"
            )
        self._parts = 1 if experience.is_first_subexp else self._parts + 1
        # Avalanche 0.6 does not set is_last_subexp if the parts divide the experience evenly.
        last = experience.is_last_subexp or self._parts == experience.sub_stream_length
        return experience.origin_experience if last else None


def forward(strategy: Any, batch: Any) -> Any:
    """Run the strategy's own forward pass on a batch that is not the one it trains on.

    The batch and its output stay current, so that ``strategy.criterion()`` uses them.
    """
    strategy.mbatch = [part.to(strategy.device) for part in batch]
    strategy.mb_output = strategy.forward()
    return strategy.mb_output


def collate_of(dataset: Any) -> Any:
    """Return the function that makes batches of this data set, or None for the default."""
    return getattr(dataset, "collate_fn", None)
