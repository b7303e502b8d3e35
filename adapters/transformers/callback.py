"""`PreserveCallback`: a Preserver inside a Trainer."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import distributed as dist
from transformers import TrainerCallback
from transformers.trainer_utils import has_length

from gradproj.adapters.torch import Preserver
from gradproj.adapters.transformers import _checkpoints

STATE = "gradproj_preserver.pt"


class PreserveCallback(TrainerCallback):
    """Keep what a model answers to the inputs of old tasks; each call of ``train()`` is a task.

    Each optimizer step replaces the gradient g of a layer by the solution of

        w = argmin ½‖w − g‖² + λ/2 tr(w S wᵀ),

    where S holds the second moments of the inputs that old tasks fed into the layer, see
    :class:`gradproj.adapters.torch.Preserver`. When training ends, the callback runs the training
    set through the model once more and adds its inputs to S. Padding does not count.

    Parameters
    ----------
    preserver : Preserver
        For the trainer's model.
    batches : int, optional
        Number of training batches that are observed at the end. Default: all of them; of a stream
        without a length, as many as the training took.

    Notes
    -----
    Checkpoints contain S of the tasks that ended before. A resumed run reads it from the checkpoint
    in ``args.output_dir``. For a checkpoint in another folder, call :meth:`load` before
    ``train(resume_from_checkpoint=folder)``. The inputs of a task are observed after its last
    checkpoint: save ``preserver.state_dict()`` beside the final model of each task.

    With several processes, the inputs of all processes add up.

    Examples
    --------
    .. code-block:: python

        preserver = Preserver(model, strength=10.0, exclude=["classifier"])
        trainer = Trainer(model, args, callbacks=[PreserveCallback(preserver)], train_dataset=first)
        trainer.train()
        trainer.train_dataset = second
        trainer.train()  # without losing the first task
    """

    def __init__(self, preserver: Preserver, batches: int | None = None) -> None:
        if not isinstance(preserver, Preserver):
            raise TypeError(
                f"preserver is a {type(preserver).__name__}; pass a "
                "gradproj.adapters.torch.Preserver for the trainer's model"
            )
        if batches is not None and batches < 1:
            raise ValueError(f"batches={batches} is invalid: expected an integer >= 1 or None")
        self.preserver = preserver
        self.batches = batches
        self._handle: Any = None
        self._is_loaded = False

    def load(self, folder: str | Path) -> None:
        """Read the state of the preserver from a checkpoint folder."""
        state = _checkpoints.load(Path(folder), STATE, type(self).__name__)
        self.preserver.load_state_dict(state)
        self._is_loaded = True

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Attach the preserver to the optimizer, and restore it if the run was resumed."""
        del control
        self._check(kwargs["model"])
        if args.world_size > 1 and self.preserver.process_group is None:
            self.preserver.process_group = dist.group.WORLD
        if state.global_step and not self._is_loaded:  # resumed
            self.load(_checkpoints.folder_of(args, state))
        self._is_loaded = False
        self._detach()  # of a run that ended with an error
        self._handle = self.preserver.attach(kwargs["optimizer"])

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Add the state of the preserver to a checkpoint."""
        del control, kwargs
        if args.should_save:
            folder = _checkpoints.folder_of(args, state)
            _checkpoints.save(folder, STATE, self.preserver.state_dict())

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Observe the inputs of the task, and preserve the answers to them from now on."""
        del control
        self._detach()
        model, loader = kwargs["model"], kwargs["train_dataloader"]
        batches = self.batches
        if batches is None and not has_length(loader):  # a stream, which may be endless
            batches = state.global_step * args.gradient_accumulation_steps
        training = model.training
        model.eval()
        for batch in islice(loader, batches):
            inputs = {name: _on(value, args.device) for name, value in batch.items()}
            with torch.no_grad(), self.preserver.observe(mask=inputs.get("attention_mask")):
                model(**inputs)
        model.train(training)
        self.preserver.consolidate()

    def _detach(self) -> None:
        if self._handle is not None:
            self._handle.remove()
            self._handle = None

    def _check(self, model: Any) -> None:
        mine = {id(p) for p in self.preserver.model.parameters()}
        if not any(id(p) in mine for p in model.parameters()):
            raise ValueError(
                "the preserver and the trainer have different models; build it with "
                "Preserver(trainer.model, …)"
            )


def _on(value: Any, device: torch.device) -> Any:
    return value.to(device) if isinstance(value, torch.Tensor) else value
