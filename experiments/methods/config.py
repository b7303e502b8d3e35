"""The configuration of a run, as stored in `config.json`."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, Literal

from gradproj.experiments.common.schema import ranged, to_plain

__all__ = ["VERSION", "MemoryConfig", "RunConfig"]


# 2: `ours` and `replay` have the option `replay`, and another default strength.
# 3: the parts of a buffer are drawn again at every step; `memory.redraw` is gone.
# 4: `gem`, `agem` and `sgem` have the default strength of `ours`, and `gem` the option `replay`.
VERSION = 4


@dataclass(frozen=True)
class MemoryConfig:
    """The episodic memory that every replay method of a run is given.

    Attributes
    ----------
    per_task : int
        Samples kept of each task.
    policy : str
        Which samples are kept; see `gradproj.adapters.torch.EpisodicMemory`.
    batch : int
        Samples drawn from each old task at each step; 0 takes the whole memory.
    total : int
        Samples kept of all tasks together, if a method has one buffer. 0 stands for `per_task`
        times the number of tasks.
    per_class : int
        Samples kept of each class, instead of `total`, in class-incremental systems and
        projections. `tinyer`, `derpp` and `gdumb` do not have it. 0 is not set.
    buffers : int
        Number of random parts of the buffer that take the place of old tasks in class-incremental
        projections. They are drawn again at every step.
    """

    per_task: int = ranged(256, low=1)
    policy: str = "last"
    batch: int = ranged(20, low=0)
    total: int = ranged(0, low=0)
    per_class: int = ranged(0, low=0)
    buffers: int = ranged(5, low=1)

    def budget(self, tasks: int) -> int:
        """Return the size of one buffer for a number of tasks."""
        return self.total or self.per_task * tasks


@dataclass(frozen=True)
class RunConfig:
    """Everything that determines the result of one run.

    Attributes
    ----------
    benchmark, method : str
        Names from `gradproj list`, or your own code as `module:object`.
    options : dataclass
        The method's own options (its `Options` class).
    preset : str
        The preset that the run was made from, or "".
    seed : int
        Seed of the initial weights, the data, their order, the memory and the sampling.
    network, network_options
        Name and keyword arguments for `gradproj.experiments.networks.build`.
    stream : mapping
        Keyword arguments for `gradproj.experiments.streams.benchmarks.build`.
    epochs, batch, lr, momentum, weight_decay
        Passes over each task, samples per step, and the settings of SGD.
    milestones, lr_factor
        The learning rate is multiplied by `lr_factor` at the start of these epochs of a task.
    augment : str
        Random augmentation of each training batch. "crop-flip" shifts the images by up to four
        pixels and mirrors half of them. "jitter-crop-flip" changes brightness and contrast first,
        as GD does. "twelvefold" draws one of EEIL's twelve forms of each image.
    memory : MemoryConfig
    ema : float
        Decay of an exponential average of the weights, which is also evaluated. 0 has none.
    version : int
        Version of this layout.
    """

    benchmark: str
    method: str
    options: Any = field(default_factory=dict)
    preset: str = ""
    seed: int = ranged(0, low=0)
    network: str = "mlp"
    network_options: dict[str, Any] = field(default_factory=dict)
    stream: dict[str, Any] = field(default_factory=dict)
    epochs: int = ranged(1, low=1)
    batch: int = ranged(10, low=1)
    lr: float = ranged(0.1, low=0.0)
    momentum: float = ranged(0.0, low=0.0, high=1.0)
    weight_decay: float = ranged(0.0, low=0.0)
    milestones: tuple[int, ...] = ()
    lr_factor: float = ranged(0.1, low=0.0)
    augment: Literal["none", "crop-flip", "jitter-crop-flip", "twelvefold"] = "none"
    memory: MemoryConfig = field(default_factory=MemoryConfig)
    ema: float = ranged(0.0, low=0.0, below=1.0)
    version: int = VERSION

    def to_json(self) -> str:
        """Write every value, defaults included."""
        return json.dumps(to_plain(self), indent=2) + "\n"
