"""`run`: execute one run in its folder, from the configuration to the result."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from gradproj.experiments.common import seeds
from gradproj.experiments.common.errors import ConfigError
from gradproj.experiments.methods.config import RunConfig
from gradproj.experiments.runs.events import Event, ignore
from gradproj.experiments.runs.folder import RunFolder
from gradproj.experiments.runs.signals import never
from gradproj.experiments.runs.tensorboard import TensorBoard
from gradproj.experiments.runs.training import Interrupted, Run
from gradproj.experiments.streams import Stream, benchmarks

__all__ = ["Interrupted", "run", "stream_options"]


def run(
    config: RunConfig,
    folder: str | Path,
    *,
    stream: Stream | None = None,
    data_dir: Path | None = None,
    resume: bool = False,
    force: bool = False,
    checkpoint_seconds: float = 60.0,
    device: str = "cpu",
    tensorboard: bool = False,
    report: Callable[[Event], None] = ignore,
    should_stop: Callable[[], bool] = never,
) -> bool:
    """Execute the run of `config` in `folder`; return False if it was finished already.

    The call seeds the global generators of Python, NumPy and torch and enables torch's
    deterministic algorithms. It does not restore them.

    Parameters
    ----------
    config : RunConfig
    folder : path
        Receives the configuration, the log, the checkpoints and finally `result.json`.
    stream : Stream, optional
        Tasks to use instead of those of `config.benchmark`.
    data_dir : Path, optional
        Where the data sets are.
    resume, force : bool
        Continue an unfinished run; delete what is in the folder and start over.
    checkpoint_seconds : float
        Time between checkpoints; 0 writes one after every step.
    device : str
        Where the network and the batches are.
    tensorboard : bool
        Write TensorBoard files to the folder as well.
    report : callable
        Called with an `Event` for each step and each evaluation.
    should_stop : callable
        Called after each step; if it returns True, the run stops as after Ctrl-C.

    Raises
    ------
    ConfigError
        `config` or `device` cannot be used; the folder is unchanged.
    RunError
        The folder holds another run, its checkpoint cannot be used, or the training diverged.
    Interrupted
        The run was stopped.
    """
    _check_device(device)
    folder = Path(folder)
    store = RunFolder(folder)
    if not store.has_work(config, resume=resume, force=force):
        store.remove_leftovers()
        return False
    torch.use_deterministic_algorithms(True, warn_only=True)
    seeds.seed_globally(config.seed)
    try:
        if stream is None:
            stream = benchmarks.build(config.benchmark, **stream_options(config), root=data_dir)
        job = Run(config, stream, store, device=device, data_dir=data_dir, report=report)
    except (TypeError, ValueError) as error:
        # Some values depend on each other or on the data and can only be checked here.
        raise ConfigError(str(error)) from error
    job.checkpoint_seconds, job.should_stop = checkpoint_seconds, should_stop
    if tensorboard:
        job.listeners.append(TensorBoard(folder))
    with store.prepared(config, resume=resume, force=force) as work:
        if work:
            job.execute()
    return work


def _check_device(name: str) -> None:
    try:
        torch.empty(0, device=name)
    except (AssertionError, RuntimeError) as error:
        reason = str(error).partition("\n")[0]
        raise ConfigError(
            f"device={name!r} cannot be used ({reason}); choose one that this machine has, "
            "such as 'cpu'"
        ) from error


def stream_options(config: RunConfig) -> dict[str, Any]:
    """Return the arguments of the stream; its seed is the run's unless it has its own."""
    return {"seed": config.seed, **config.stream}
