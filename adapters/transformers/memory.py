"""`DictMemory`: stored samples whose parts have names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from torch import Tensor

from gradproj.adapters.torch import EpisodicMemory


class DictMemory:
    """Samples of each task as dicts of tensors, and seeded batches of them.

    It is an :class:`gradproj.adapters.torch.EpisodicMemory` that also keeps the names.

    Parameters
    ----------
    per_task : int
        Number of samples kept per task.
    policy : {"last", "random", "reservoir"}
        Which samples are kept when a task offers more, as in ``EpisodicMemory``.
    seed : int
        Seed of all choices and batches.

    Examples
    --------
    >>> import torch
    >>> memory = DictMemory(per_task=2)
    >>> samples = {"input_ids": torch.tensor([[5, 6], [7, 8]]), "labels": torch.ones(2)}
    >>> memory.add("reviews", samples)
    >>> sorted(memory.sample("reviews", 1))
    ['input_ids', 'labels']
    >>> memory
    DictMemory(tasks=1, samples=2)
    """

    def __init__(
        self,
        per_task: int = 256,
        policy: Literal["last", "random", "reservoir"] = "random",
        seed: int = 0,
    ) -> None:
        self._samples = EpisodicMemory(per_task, policy, seed)
        self._names: dict[int | str, list[str]] = {}

    def __repr__(self) -> str:
        return f"{type(self).__name__}(tasks={len(self.tasks)}, samples={len(self)})"

    def __len__(self) -> int:
        return len(self._samples)

    @property
    def per_task(self) -> int:
        """Number of samples kept per task."""
        return self._samples.per_task

    @property
    def tasks(self) -> tuple[int | str, ...]:
        """The tasks, in the order in which they came."""
        return self._samples.tasks

    def add(self, task: int | str, batch: Mapping[str, Any]) -> None:
        """Offer samples of a task.

        Parameters
        ----------
        task : int or str
            The task they belong to.
        batch : mapping
            Tensors with the samples along their first axis. Entries that are not tensors are
            refused.
        """
        wrong = [name for name, value in batch.items() if not isinstance(value, Tensor)]
        if wrong:
            raise TypeError(
                f"batch[{wrong[0]!r}] is a {type(batch[wrong[0]]).__name__}; the memory stores "
                "tensors: remove the entry, or let the data collator return tensors"
            )
        names = self._names.get(task, sorted(batch))
        if names != sorted(batch):
            raise ValueError(
                f"batch has {sorted(batch)} and earlier samples of task {task!r} have {names}; "
                "offer the same entries at each call"
            )
        self._samples.add(task, *(batch[name] for name in names))
        self._names[task] = names

    def sample(self, task: int | str, n: int) -> dict[str, Tensor]:
        """Draw n samples of a task without replacement; all of them if the task has no more."""
        return dict(zip(self._names[task], self._samples.sample(task, n), strict=True))

    def state_dict(self) -> dict[str, Any]:
        """Return samples and generator; ``torch.load(weights_only=True)`` reads it back."""
        return {"samples": self._samples.state_dict(), "names": dict(self._names)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a :meth:`state_dict`."""
        self._samples.load_state_dict(state["samples"])
        self._names = dict(state["names"])


def trimmed(batch: dict[str, Tensor], mask: str = "attention_mask") -> dict[str, Tensor]:
    """Cut the padding at the end that all samples of a batch have.

    Samples are stored at the length of the longest one, which few batches need. If the labels have
    the shape of the mask and the part to cut is not ignored (-100), nothing is cut: they may be one
    per class instead of one per token.
    """
    if mask not in batch or batch[mask].dim() != 2 or not batch[mask].any():
        return batch
    shape = batch[mask].shape
    length = int(batch[mask].any(0).nonzero().max()) + 1
    labels = batch.get("labels")
    if labels is not None and labels.shape == shape and (labels[:, length:] != -100).any():
        return batch
    return {
        name: value[:, :length] if value.shape[:2] == shape else value
        for name, value in batch.items()
    }
