"""`PreserveCallback`: a Preserver inside a Lightning Trainer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import islice
from math import isfinite
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import distributed as dist

from gradproj.adapters.lightning._task import TaskCallback, quiet, train_loader, training_step
from gradproj.adapters.torch import Preserver


class PreserveCallback(TaskCallback):
    """Keep what a module answers to the inputs of old tasks, without stored samples.

    Each optimizer step replaces the gradient g of a layer by the solution of

        w = argmin ½‖w − g‖² + λ/2 tr(w S wᵀ),

    where S holds the second moments of the inputs that old tasks fed into the layer, see
    :class:`gradproj.adapters.torch.Preserver`. Each call of ``trainer.fit`` is one task. When it
    ends, the callback runs the training set through the module once more and adds its inputs to S.

    Parameters
    ----------
    preserver : Preserver
        For the module that is trained.
    batches : int, optional
        Number of training batches that are observed at the end. Default: one epoch.
    forward : callable, optional
        ``forward(module, batch)`` makes the forward pass that is observed. Default: the module's
        ``training_step`` without gradients and in evaluation mode, with its calls of ``log``
        ignored. Pass a function if the training step has other side effects, for example on
        metrics, or if the module uses manual optimization.

    Notes
    -----
    If a batch is a dict with an ``attention_mask``, padding does not count.

    The projection runs inside ``optimizer.step()``, after gradients were accumulated, unscaled and
    clipped. It works with automatic and manual optimization and with several optimizers: it is
    attached to each that has protected parameters.

    Checkpoints contain S of the tasks that ended before. ``trainer.save_checkpoint(path)`` after
    ``fit`` also contains the last task. With several processes, the inputs of all processes add up.

    Examples
    --------
    .. code-block:: python

        preserve = PreserveCallback(Preserver(module, strength=10.0))
        for loader in loaders:  # one per task
            Trainer(max_epochs=3, callbacks=[preserve]).fit(module, loader)
    """

    def __init__(
        self,
        preserver: Preserver,
        *,
        batches: int | None = None,
        forward: Callable[[LightningModule, Any], object] | None = None,
    ) -> None:
        super().__init__()
        if not isinstance(preserver, Preserver):
            raise TypeError(
                f"preserver is a {type(preserver).__name__}; pass a "
                "gradproj.adapters.torch.Preserver for the module, such as Preserver(module)"
            )
        if batches is not None and batches < 1:
            raise ValueError(f"batches={batches} is invalid: expected an integer >= 1 or None")
        self.preserver = preserver
        self.batches = batches
        self.forward = forward
        self._handles: list[Any] = []
        self._seen = 0  # batches in this call of fit

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Refuse a module whose training step cannot be run for its inputs alone."""
        super().setup(trainer, pl_module, stage)
        if stage == "fit" and self.forward is None and not pl_module.automatic_optimization:
            raise ValueError(
                f"{type(pl_module).__name__} uses manual optimization, so its training_step cannot "
                "be run to observe inputs: pass PreserveCallback(forward=…), for example "
                "forward=lambda module, batch: module(batch[0])"
            )

    def begin(self, trainer: Trainer, module: LightningModule) -> None:
        """Attach the preserver to the optimizers."""
        mine = {id(p) for p in self.preserver.model.parameters()}
        if not any(id(p) in mine for p in module.parameters()):
            raise ValueError(
                "the preserver and the trainer have different modules; build it with "
                "Preserver(module, …) and pass that module to fit()"
            )
        if self.batches is None:
            train_loader(trainer, self)  # raises before the training if there is not one loader
        if trainer.world_size > 1 and self.preserver.process_group is None:
            self.preserver.process_group = dist.group.WORLD
        self._detach()
        self._seen = 0
        protected = {name for names in self.preserver.protected.values() for name in names}
        named = dict(self.preserver.model.named_parameters())
        wanted = {id(named[name]) for name in protected}
        for optimizer in trainer.optimizers:
            trained = {id(p) for group in optimizer.param_groups for p in group["params"]}
            if wanted & trained:
                self._handles.append(self.preserver.attach(optimizer))
        if not self._handles:
            raise ValueError(
                "no optimizer of the module trains a protected parameter; configure_optimizers() "
                f"must cover some of {sorted(protected)[:3]}"
            )

    def on_train_batch_end(self, *args: Any, **kwargs: Any) -> None:
        """Count batches, for loaders without a length."""
        del args, kwargs
        self._seen += 1

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Observe the inputs of the task, and preserve the answers to them from now on."""
        self._detach()
        epoch = trainer.num_training_batches
        batches = self.batches or (int(epoch) if isfinite(epoch) else self._seen)
        training = {module: module.training for module in pl_module.modules()}
        pl_module.eval()
        try:
            for batch in islice(train_loader(trainer, self), batches):
                self._observe(trainer, pl_module, trainer.strategy.batch_to_device(batch))
        finally:
            for module, mode in training.items():
                module.training = mode
        self.preserver.consolidate()

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """Leave the optimizers as they were."""
        del trainer, pl_module, exception
        self._detach()

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the preserver."""
        return self.preserver.state_dict()

    def restore(self, state: dict[str, Any]) -> None:
        """Resume from a :meth:`state_dict`."""
        self.preserver.load_state_dict(state)

    def _observe(self, trainer: Trainer, module: LightningModule, batch: Any) -> None:
        mask = batch.get("attention_mask") if isinstance(batch, Mapping) else None
        with (
            torch.no_grad(),
            quiet(module),
            trainer.precision_plugin.train_step_context(),
            self.preserver.observe(mask=mask),
        ):
            (self.forward or training_step)(module, batch)

    def _detach(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []
