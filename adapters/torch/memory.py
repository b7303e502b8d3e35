"""`EpisodicMemory`: a few samples of each task, stored as plain tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import index
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import get_worker_info

from gradproj.adapters.torch import _arguments
from gradproj.adapters.torch._arguments import Policy
from gradproj.adapters.torch._draws import draw
from gradproj.adapters.torch._policies import PLACING, Offer, herding

Task = int | str

# Dtypes that torch cannot read or write by index, and integers with as many bits that it can.
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
        Number of samples kept per task.
    policy : {"last", "random", "reservoir", "herding"}
        Which samples are kept when a task offers more:

        - "last": the latest ones (a ring).
        - "random": a random choice, drawn again at each `add`.
        - "reservoir": a uniform choice of all samples ever offered.
        - "herding": of each label those whose mean is nearest to the label's mean. Offer a whole
          task at once, because herding sees nothing else.

        Herding reads the labels from the last tensor of a sample.
    seed : int
        Seed of the one generator of all choices and batches. In a worker process of a
        ``DataLoader`` the generator starts from this seed and the worker's own seed, so that
        workers draw different batches.
    device : device, optional
        Where the samples are kept; by default the device of a task's first samples.
    features : callable, optional
        For herding: maps the first tensor of the samples to their features (n, F). By default the
        flattened samples themselves.

    Examples
    --------
    >>> import torch
    >>> memory = EpisodicMemory(per_task=2)
    >>> memory.add(0, torch.tensor([[1.0], [2.0], [3.0]]), torch.tensor([0, 1, 0]))
    >>> x, y = memory.sample(0, 10)
    >>> sorted(x.flatten().tolist()), len(memory), memory.tasks
    ([2.0, 3.0], 2, (0,))
    >>> memory
    EpisodicMemory(tasks=1, samples=2, per_task=2, policy='last')
    """

    def __init__(
        self,
        per_task: int = 256,
        policy: Policy = "last",
        seed: int = 0,
        device: torch.device | str | None = None,
        features: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        _arguments.count("per_task", per_task, "keep at least one sample per task")
        _arguments.choices(policy=policy)
        self.per_task = int(per_task)  # torch.load refuses NumPy integers
        self.policy: Policy = policy
        self.device = device
        self.features = features
        self.generator = torch.Generator("cpu").manual_seed(index(seed))
        self._worker: int | None = None  # seed of the data-loader worker that this copy is in
        self._samples: dict[Task, tuple[Tensor, ...]] = {}
        self._size: dict[Task, int] = {}
        self._seen: dict[Task, int] = {}

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(tasks={len(self.tasks)}, samples={len(self)}, "
            f"per_task={self.per_task}, policy={self.policy!r})"
        )

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
            The parts of a sample (inputs, labels, …), each with the samples along its first axis.
            Any shapes and dtypes, the same at each call. Without samples nothing happens.
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
        # Recorded after the placing: a task whose first samples cannot be placed stays unknown.
        self._size[task] = self._place(stored, offered, size, seen)
        self._seen[task] = seen + count
        self._samples[task] = stored

    def sample(self, task: Task, n: int) -> tuple[Tensor, ...]:
        """Draw n samples of a task without replacement; all of them if the task has no more.

        They are copies: changing them in place does not change the memory.
        """
        _arguments.count("n", n, "draw at least one sample")
        size = self._size.get(task, 0)
        if n >= size:
            return tuple(t.clone() for t in self.all(task))
        chosen = draw(size, n, self._seeded())
        return tuple(_picked(t, chosen) for t in self._samples[task])

    def all(self, task: Task | None = None) -> tuple[Tensor, ...]:
        """Return all samples of a task, or of all tasks one after the other.

        The samples of one task are views of the memory: do not write to them. Those of all tasks
        are copies.
        """
        if task is None:
            parts = [self.all(each) for each in self.tasks]
            kinds = {tuple((t.shape[1:], t.dtype) for t in part) for part in parts}
            if len(kinds) > 1:
                raise ValueError(
                    f"the samples of tasks {list(self.tasks)} differ in shape or dtype and "
                    "cannot be concatenated; name a task"
                )
            return tuple(torch.cat(tensors) for tensors in zip(*parts, strict=True))
        if task not in self._samples:
            raise KeyError(f"task {task!r} is not in the memory; it has {list(self.tasks)}")
        return tuple(t[: self._size[task]] for t in self._samples[task])

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
        """Resume from a :meth:`state_dict`."""
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
        """Make room for the samples of a task, with the shapes and dtypes of these."""
        with torch.inference_mode(False):  # or it could not be written to in any other mode
            return tuple(
                t.new_empty((self.per_task, *t.shape[1:]), device=self.device or t.device)
                for t in tensors
            )

    def _check(self, task: Task, tensors: tuple[Tensor, ...]) -> None:
        """Raise for samples that the memory cannot store."""
        _arguments.name(task)
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
        if self.policy == "herding" and (labels.ndim != 1 or not whole):
            raise ValueError(
                f"tensors[-1] has shape {tuple(labels.shape)} and dtype {labels.dtype}; "
                f"policy={self.policy!r} needs one integer label per sample there"
            )

    def _place(
        self, stored: tuple[Tensor, ...], offered: tuple[Tensor, ...], size: int, seen: int
    ) -> int:
        """Write the samples to keep; return how many places are in use afterwards."""

        def both(position: int) -> Tensor:
            return torch.cat([stored[position][:size], offered[position]])

        offer = Offer(
            count=len(offered[0]),
            size=size,
            seen=seen,
            capacity=self.per_task,
            labels=both(-1).cpu() if self.policy == "herding" else torch.empty(0, device="cpu"),
            features=lambda: self._features(both(0)),
            generator=self._seeded(),
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

    def _seeded(self) -> torch.Generator:
        """Return the generator, with a seed of its own in each worker of a data loader.

        A forked worker would start with the same state as all others and draw equal samples.
        """
        worker = get_worker_info()
        if worker is not None and worker.seed != self._worker:
            self._worker = worker.seed
            self.generator.manual_seed((self.generator.initial_seed() + worker.seed) % 2**63)
        return self.generator

    def _features(self, inputs: Tensor) -> Tensor:
        if self.features is None:
            return inputs.reshape(len(inputs), -1).cpu()
        with torch.no_grad():
            found = self.features(inputs).cpu()
        if found.ndim != 2 or len(found) != len(inputs):
            raise ValueError(
                f"features makes {tuple(found.shape)} of {len(inputs)} samples; let it return one "
                f"row per sample, ({len(inputs)}, F), for example with flatten(1)"
            )
        return found


def _picked(t: Tensor, rows: Tensor) -> Tensor:
    # Four times as fast as indexing, which matters because every step draws from every old task.
    return _indexable(t).index_select(0, rows.to(t.device)).view(t.dtype)


def _indexable(t: Tensor) -> Tensor:
    return t.view(BITS[t.dtype]) if t.dtype in BITS else t
