"""`TaskCallback`: the parts that both callbacks share."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.strategies import DDPStrategy, SingleDeviceStrategy
from lightning.pytorch.strategies.launchers import _MultiProcessingLauncher


class TaskCallback(Callback):
    """A callback for which each call of ``trainer.fit`` is one task.

    Subclasses implement :meth:`begin`, :meth:`state_dict` and :meth:`restore`.
    """

    def __init__(self) -> None:
        self._trained = False
        self._restores = True

    def begin(self, trainer: Trainer, module: LightningModule) -> None:
        """Prepare the first step of a task."""
        raise NotImplementedError

    def restore(self, state: dict[str, Any]) -> None:
        """Resume from what :meth:`state_dict` returned."""
        raise NotImplementedError

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Refuse a strategy for which this callback does not work."""
        del pl_module
        if stage != "fit":
            return
        strategy, name = trainer.strategy, type(self).__name__
        if not isinstance(trainer, Trainer):
            raise TypeError(
                f"the Trainer is from {type(trainer).__module__.partition('.')[0]}, and {name} is "
                "for the package lightning: import Trainer and LightningModule from "
                "lightning.pytorch"
            )
        if not isinstance(strategy, SingleDeviceStrategy | DDPStrategy):
            raise ValueError(
                f"strategy is a {type(strategy).__name__}; {name} works on one device and with "
                'strategy="ddp"'
            )
        if isinstance(strategy.launcher, _MultiProcessingLauncher):
            raise ValueError(
                f"the strategy starts processes that end with fit(), and the state of {name} would "
                'be lost; use strategy="ddp" and run a script'
            )

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Notice later whether ``fit`` has trained at all."""
        del trainer, pl_module
        self._trained = False

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Begin a task."""
        self._trained = True
        self.begin(trainer, pl_module)

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Warn if there was no task, because a Trainer was used a second time."""
        del pl_module
        if not self._trained:
            warnings.warn(
                f"fit() made no step (max_epochs={trainer.max_epochs}, current_epoch="
                f"{trainer.current_epoch}), and {type(self).__name__} has no new task: a Trainer "
                "counts the epochs of all calls, so make a new Trainer for each task",
                stacklevel=2,
            )

    def on_load_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Refuse to resume from a checkpoint without the state of this callback."""
        del pl_module
        resumed = trainer.state.fn == "fit"
        found = self.state_key in checkpoint["callbacks"]
        if resumed and not found:
            raise ValueError(
                f"the checkpoint was written without {type(self).__name__} and training cannot be "
                "resumed from it; to start a task from its weights, load them with "
                "load_from_checkpoint() and call fit() without ckpt_path"
            )
        # Lightning also restores callbacks for test(ckpt_path=…), whose checkpoint is usually from
        # before the end of the task.
        self._restores = resumed or not found

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Resume from a :meth:`state_dict`; ``test`` and ``validate`` change nothing."""
        if self._restores:
            self.restore(state_dict)
        self._restores = True


def train_loader(trainer: Trainer, owner: TaskCallback) -> Any:
    """Return the one training data loader."""
    loader = trainer.train_dataloader
    if isinstance(loader, list | tuple | dict):
        raise TypeError(
            f"fit() has {len(loader)} training data loaders; {type(owner).__name__} needs one: "
            "combine the data sets, for example with torch.utils.data.ConcatDataset"
        )
    return loader


def has_length(dataset: Any) -> bool:
    """Whether samples can be drawn by number; some data sets have a ``__len__`` that raises."""
    try:
        len(dataset)
    except TypeError:
        return False
    return hasattr(dataset, "__getitem__")


def training_step(module: LightningModule, batch: Any) -> Any:
    """Run the module's training step on a batch that does not count as a batch of training."""
    takes_index = len(inspect.signature(module.training_step).parameters) > 1
    return module.training_step(batch, 0) if takes_index else module.training_step(batch)


@contextmanager
def quiet(module: LightningModule) -> Iterator[None]:
    """Ignore calls of ``module.log`` and ``module.log_dict``."""

    def ignore(*args: Any, **kwargs: Any) -> None:
        del args, kwargs

    names = ("log", "log_dict")
    before = {name: vars(module)[name] for name in names if name in vars(module)}
    vars(module).update(dict.fromkeys(names, ignore))
    try:
        yield
    finally:
        for name in names:
            del vars(module)[name]
        vars(module).update(before)
