"""The arguments of learners, the phases of training, and the report of a step."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from gradproj.experiments import networks
from gradproj.experiments.common import seeds
from gradproj.experiments.common.errors import ConfigError
from gradproj.experiments.methods.config import RunConfig
from gradproj.experiments.streams import Stream

__all__ = ["NoOptions", "Phase", "Setup", "Step", "make_network"]


@dataclass(frozen=True)
class NoOptions:
    """The options of methods without options."""


@dataclass(frozen=True)
class Setup:
    """The arguments of every learner."""

    config: RunConfig
    stream: Stream
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    data_dir: Path | None = None


@dataclass(frozen=True)
class Phase:
    """One phase of training on a task: a number of passes over `Learner.data`.

    `lr` and `milestones` replace those of the configuration if they are given.
    """

    name: str
    epochs: int
    batch: int
    lr: float | None = None
    milestones: tuple[int, ...] | None = None


@dataclass(slots=True)
class Step:
    """The report of one step: its loss, and for projections the corrections."""

    loss: Tensor
    corrected: float | None = None
    ranks: list[int] | None = None


def make_network(
    config: RunConfig,
    stream: Stream,
    outputs: int | None = None,
    purpose: str = "weights",
    **options: Any,
) -> nn.Module:
    """Make the network of `config` for `stream`, with weights that depend on seed and `purpose`."""
    options = {**config.network_options, **options}
    try:
        return networks.build(
            config.network,
            outputs=stream.outputs if outputs is None else outputs,
            input_shape=stream.input_shape,
            seed=seeds.derive(config.seed, purpose),
            **options,
        )
    except (TypeError, ValueError) as error:
        # The error of torch does not name the option.
        raise ConfigError(
            f"network '{config.network}' cannot be built with network_options={options}: {error}"
        ) from error
