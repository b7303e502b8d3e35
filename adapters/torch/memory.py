"""`EpisodicMemory`: a few samples of each task, as plain tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import index
from typing import Any

import torch
from torch import Tensor

from gradproj.adapters.torch import checks
from gradproj.adapters.torch.policies import PLACING, Offer, herding

Task = int | str

LABELLED = ("balanced", "herding")  # policies that read the labels
# What torch cannot read or write by index, and integers of as many bits that it can.
BITS = {
    torch.uint16: torch.int16,
    torch.uint32: torch.int32,
    torch.uint64: torch.int64,
    torch.float8_e4m3fn: torch.uint8,
    torch.float8_e5m2: torch.uint8,
}


class EpisodicMemory:
    """Samples of each task, up to a number, and seeded batches of them.

    Parameters
    ----------
    per_task : int
        Samples kept of each task.
    policy : {"last", "random", "reservoir", "balanced", "herding"}
        What is kept when a task offers more: the latest (a ring); a random choice, drawn anew at
        each `add`; a uniform choice of all that was ever offered; equally many of each label, the
        first that came; of each label those whose mean is nearest to the label's mean. The last two
        read the labels from the last tensor of a sample. Offer herding a whole task at once: it
        sees nothing else.
    seed : int
        Seeds the one generator of all choices and batches.
    device : device, optional
        Where the samples are kept; where a task's first ones come from unless given.
    features : callable, optional
        For herding: from the first tensor of the samples to their features (n, F). The numbers of
        the samples themselves unless given.

    Examples
    --------
    >>> import torch
    >>> memory = EpisodicMemory(per_task=2)
    >>> memory.add(0, torch.tensor([[1.0], [2.0], [3.0]]), torch.tensor([0, 1, 0]))
    >>> x, y = memory.sample(0, 10)
    >>> sorted(x.flatten().tolist()), len(memory), memory.tasks
    ([2.0, 3.0], 2, (0,))
    """

    def __init__(
        self,
        per_task: int = 256,
        policy: str = "last",
        seed: int = 0,
        device: torch.device | str | None = None,
        features: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        checks.count("per_task", per_task, "keep at least one sample a task")
        if policy not in (*PLACING, "herding"):
            known = ", ".join(repr(name) for name in (*PLACING, "herding"))
            raise ValueError(f"policy={policy!r} is not known; use {known}")
        self.per_task = int(per_task)  # torch.load refuses NumPy's
        self.policy = policy
        self.device = device
        self.features = features
        self.generator = torch.Generator("cpu").manual_seed(index(seed))  # as this does
        self._samples: dict[Task, tuple[Tensor, ...]] = {}
        self._size: dict[Task, int] = {}
        self._seen: dict[Task, int] = {}

    @property
    def tasks(self) -> tuple[Task, ...]:
        """The tasks, in the order in which they came."""
        return tuple(self._samples)

    def __len__(self) -> int:
        return sum(self._size.values())

    def add(self, task: Task, *tensors: Tensor) -> None:
        """Offer samples of a task.

        Parameters
        ----------
        task : int or str
            The task they belong to.
        *tensors : Tensor
            What a sample consists of (inputs, labels, …), each with the samples along its first
            axis; any shapes and dtypes, the same at each call. Without samples it does nothing.
        """
        self._check(task, tensors)
        task = task if isinstance(task, str) else int(task)
        count = len(tensors[0])
        if count == 0:
            return
        stored = self._samples.get(task)
        if stored is None:
            stored = self._empty(tensors)
        offered = tuple(
            t.detach().to(place.device) for t, place in zip(tensors, stored, strict=True)
        )
        size, seen = self._size.get(task, 0), self._seen.get(task, 0)
        # Noted after the placing: a task whose first samples cannot be placed stays unknown.
        self._size[task] = self._place(stored, offered, size, seen)
        self._seen[task] = seen + count
        self._samples[task] = stored

    def sample(self, task: Task, n: int) -> tuple[Tensor, ...]:
        """Draw n samples of a task without replacement; all of them if there are no more.

        They are copies: what is done to them in place does not reach the memory.
        """
        checks.count("n", n, "draw at least one sample")
        size = self._size.get(task, 0)
        if n >= size:
            return tuple(t.clone() for t in self.all(task))
        chosen = torch.randperm(size, generator=self.generator, device="cpu")[:n]
        return tuple(_picked(t, chosen) for t in self._samples[task])

    def all(self, task: Task | None = None) -> tuple[Tensor, ...]:
        """Return all samples of a task, or of all tasks one after the other.

        Those of one task are views of the memory, to be read and not written to; those of all tasks
        are copies.
        """
        if task is None:
            parts = [self.all(each) for each in self.tasks]
            kinds = {tuple((t.shape[1:], t.dtype) for t in part) for part in parts}
            if len(kinds) > 1:
                raise ValueError(
                    f"the samples of tasks {list(self.tasks)} differ in shape or dtype and do not "
                    "go together; name a task"
                )
            return tuple(torch.cat(tensors) for tensors in zip(*parts, strict=True))
        if task not in self._samples:
            raise KeyError(f"task {task!r} is not in the memory; it has {list(self.tasks)}")
        return tuple(t[: self._size[task]] for t in self._samples[task])

    def split(self, n: int) -> list[tuple[Tensor, ...]]:
        """Split all samples at random into n parts of nearly one size, for class-incremental use.

        Examples
        --------
        >>> import torch
        >>> memory = EpisodicMemory()
        >>> memory.add(0, torch.arange(3))
        >>> memory.add(1, torch.arange(3, 8))
        >>> [len(x) for (x,) in memory.split(3)]
        [3, 3, 2]
        """
        if not 1 <= n <= len(self):
            raise ValueError(f"n={n}; the {len(self)} samples split into 1 to {len(self)} parts")
        everything = self.all()
        order = torch.randperm(len(self), generator=self.generator, device="cpu")
        return [tuple(t[part.to(t.device)] for t in everything) for part in order.tensor_split(n)]

    def state_dict(self) -> dict[str, Any]:
        """Return samples and generator; ``torch.load(weights_only=True)`` reads it back."""
        return {
            "per_task": self.per_task,
            "policy": self.policy,
            "samples": {task: [t.clone() for t in self.all(task)] for task in self.tasks},
            "seen": dict(self._seen),
            "generator": self.generator.get_state(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a :meth:`state_dict` as if nothing had happened between."""
        for name in ("per_task", "policy"):
            if state[name] != getattr(self, name):
                raise ValueError(
                    f"state has {name}={state[name]!r} and the memory {getattr(self, name)!r}; "
                    "build the memory as it was"
                )
        samples = {task: self._empty(tensors) for task, tensors in state["samples"].items()}
        for task, tensors in state["samples"].items():
            for place, t in zip(samples[task], tensors, strict=True):
                place[: len(t)] = t
        seen = dict(state["seen"])
        self.generator.set_state(state["generator"])
        self._samples, self._seen = samples, seen
        self._size = {task: len(tensors[0]) for task, tensors in state["samples"].items()}

    def _empty(self, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Make room for a task's samples, which are like these."""
        with torch.inference_mode(False):  # or it could not be written to in any other mode
            return tuple(
                t.new_empty((self.per_task, *t.shape[1:]), device=self.device or t.device)
                for t in tensors
            )

    def _check(self, task: Task, tensors: tuple[Tensor, ...]) -> None:
        """Raise for samples that the memory cannot take."""
        checks.name(task)
        for position, t in enumerate(tensors):
            if not isinstance(t, Tensor):
                raise TypeError(
                    f"tensors[{position}] is a {type(t).__name__}; pass tensors, for example "
                    "torch.as_tensor(…)"
                )
        if not all(t.ndim for t in tensors) or len({len(t) for t in tensors}) != 1:
            shapes = [tuple(t.shape) for t in tensors]
            raise ValueError(
                f"tensors have shapes {shapes}; pass one or more, with the samples along axis 0"
            )
        stored = self._samples.get(task, tensors)
        kinds = [[(t.shape[1:], t.dtype) for t in group] for group in (stored, tensors)]
        if kinds[0] != kinds[1]:
            raise ValueError(
                f"tensors of task {task!r} have changed from {kinds[0]} to {kinds[1]}; offer the "
                "same shapes and dtypes at each call"
            )
        labels = tensors[-1]
        whole = not (labels.is_floating_point() or labels.is_complex())
        if self.policy in LABELLED and (labels.ndim != 1 or not whole):
            raise ValueError(
                f"tensors[-1] has shape {tuple(labels.shape)} and dtype {labels.dtype}; "
                f"policy={self.policy!r} needs one integer label a sample there"
            )

    def _place(
        self, stored: tuple[Tensor, ...], offered: tuple[Tensor, ...], size: int, seen: int
    ) -> int:
        """Write what is kept of the offered samples; return how many places are then in use."""

        def both(position: int) -> Tensor:
            return torch.cat([stored[position][:size], offered[position]])

        offer = Offer(
            count=len(offered[0]),
            size=size,
            seen=seen,
            capacity=self.per_task,
            labels=both(-1).cpu() if self.policy in LABELLED else torch.empty(0, device="cpu"),
            features=lambda: self._features(both(0)),
            generator=self.generator,
        )
        if self.policy == "herding":
            sources = herding(offer)
            slots = torch.arange(len(sources), device="cpu")
            offered = tuple(both(position) for position in range(len(offered)))
        else:
            slots, sources = PLACING[self.policy](offer)
        for place, source in zip(stored, offered, strict=True):
            chosen = _indexable(_picked(source, sources))
            _indexable(place).index_copy_(0, slots.to(place.device), chosen)
        return max(size, int(slots.max()) + 1 if len(slots) else 0)

    def _features(self, inputs: Tensor) -> Tensor:
        if self.features is None:
            return inputs.reshape(len(inputs), -1).cpu()
        with torch.no_grad():
            found = self.features(inputs).cpu()
        if found.ndim != 2 or len(found) != len(inputs):
            raise ValueError(
                f"features makes {tuple(found.shape)} of {len(inputs)} samples; let it return one "
                f"row a sample, ({len(inputs)}, F), for example with flatten(1)"
            )
        return found


def _picked(t: Tensor, rows: Tensor) -> Tensor:
    # Four times as fast as indexing, which counts where every step draws from every old task.
    return _indexable(t).index_select(0, rows.to(t.device)).view(t.dtype)


def _indexable(t: Tensor) -> Tensor:
    return t.view(BITS[t.dtype]) if t.dtype in BITS else t
