"""The models that `gradproj inspect` measures: a benchmark's network or a user's own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from gradproj.experiments.common import seeds
from gradproj.experiments.common.registry import load_object
from gradproj.experiments.inspection.gradients import Batch, Loss
from gradproj.experiments.methods.learner import Learner
from gradproj.experiments.methods.setup import make_network
from gradproj.experiments.runs import presets
from gradproj.experiments.runs.runner import stream_options
from gradproj.experiments.streams import Stream, Task, benchmarks

__all__ = ["Subject", "from_benchmark", "from_factory"]


@dataclass(frozen=True, eq=False)
class Subject:
    """A model, its loss and the batches of each task; the last task is the new one."""

    name: str
    model: nn.Module
    loss: Loss
    tasks: Sequence[Iterable[Batch]]
    lr: float


@dataclass(frozen=True, eq=False)
class Batches:
    """A task's training samples in batches, in a new random order for each pass."""

    task: Task
    mask: Tensor
    size: int
    generator: torch.Generator

    def __iter__(self) -> Iterator[Batch]:
        x, y = self.task.train()
        order = torch.randperm(len(y), generator=self.generator)
        for start in range(0, len(y), self.size):
            rows = order[start : start + self.size]
            yield x[rows], y[rows], self.mask


def from_benchmark(
    name: str, changes: dict[str, Any], *, tasks: int | None = None, data_dir: Path | None = None
) -> Subject:
    """Build a benchmark with the network and learning rate of its preset `ours`.

    Parameters
    ----------
    name : str
        A benchmark of `gradproj list`.
    changes : dict
        Changes to the configuration: network, batch, lr, seed, stream, …
    tasks : int, optional
        Use only this number of tasks, from the first; all by default.
    data_dir : Path, optional
        Folder of the data sets.
    """
    config = presets.compose(name, "ours", changes)
    stream = benchmarks.build(config.benchmark, **stream_options(config), root=data_dir)
    model = make_network(config, stream)
    generator = seeds.generator(config.seed, "order")
    size = config.memory.batch or config.batch
    shown = stream.tasks[:tasks]
    batches = [Batches(task, _mask(stream, task), size, generator) for task in shown]
    title = f"{name} ({stream.scenario}-incremental), {config.network}"
    return Subject(title, model, Learner.loss, batches, config.lr)


def from_factory(path: str, lr: float, *, tasks: int | None = None) -> Subject:
    """Build a subject with a user's function, named as `module:function`.

    The function returns (model, loss, tasks): ``loss(model, *batch)`` is a scalar, and each of at
    least three tasks is an iterable of batches (tuples of tensors), such as a data loader. With
    `tasks`, only this number of them is used, from the first.
    """
    made = load_object(path, "--factory")()
    if not (isinstance(made, tuple) and len(made) == 3 and isinstance(made[0], nn.Module)):
        raise ValueError(f"--factory {path!r} must return (model, loss, tasks)")
    model, loss, given = made
    return Subject(path, model, loss, list(given)[:tasks], lr)


def _mask(stream: Stream, task: Task) -> Tensor:
    """Let only the task's outputs compete, or all where the task is not known at test time."""
    mask = torch.zeros(stream.outputs)
    if stream.scenario == "task":
        mask += -torch.inf
        mask[task.outputs] = 0.0
    return mask
