"""`ProjectedTrainer`: a Trainer whose steps are projected against stored samples."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Subset
from transformers import Trainer, TrainerCallback
from transformers.trainer_utils import get_last_checkpoint

import gradproj as gp
from gradproj.adapters.torch import Layers, Projector
from gradproj.adapters.transformers import _checkpoints
from gradproj.adapters.transformers.memory import DictMemory, trimmed

STATE = "gradproj_projector.pt"


class ProjectedTrainer(Trainer):
    """Train on a new task with updates that do not increase the losses of the old tasks.

    Each optimizer step solves the problem of its method. For :class:`gradproj.GEM` this is

        min ½‖w − g‖²  subject to  gᵢᵀw ≥ 0  for each old task i,

    where g is the accumulated gradient of the new task and gᵢ is the gradient of the loss on stored
    samples of task i. The optimizer gets w. A task ends with :meth:`remember`.

    Parameters
    ----------
    *args, **kwargs
        As for ``transformers.Trainer``.
    memory : DictMemory, optional
        Stored samples of old tasks. Pass the same memory to several trainers that train one model.
        By default it keeps 256 samples per task.
    method : gradproj.Method, optional
        The problem that is solved. The default is that of ``Projector``.
    layers : str, callable or list of groups of names
        Parts of the model that are projected separately, as for ``Projector``.
    old_batch_size : int, optional
        Number of stored samples per old task and step. Default: ``per_device_train_batch_size``.

    Attributes
    ----------
    memory : DictMemory
        The stored samples.
    projector : Projector or None
        The projector of the last step. ``projector.last`` has the solution of that step.

    Notes
    -----
    Gradients are accumulated first and projected once per optimizer step, before clipping. A step
    takes one backward pass per old task in addition to those of the new task. It needs memory for
    one gradient per old task, or for one in total with :class:`gradproj.AGEM`.

    Checkpoints contain the memory and the state of the method, so that a resumed run equals an
    uninterrupted one. Logs have the additional entry ``corrected``: the share of layers whose
    update was changed in the last step because it conflicted with an old task.

    With several processes, all of them use the same stored samples.

    Examples
    --------
    .. code-block:: python

        trainer = ProjectedTrainer(model, args, train_dataset=first)
        trainer.train()
        trainer.remember("first")
        trainer.train_dataset = second
        trainer.train()  # without losing the first task
    """

    def __init__(
        self,
        *args: Any,
        memory: DictMemory | None = None,
        method: gp.Method | None = None,
        layers: Layers = "module",
        old_batch_size: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        if memory is not None and not isinstance(memory, DictMemory):
            raise TypeError(
                f"memory is a {type(memory).__name__}; pass a "
                "gradproj.adapters.transformers.DictMemory, whose samples have names"
            )
        if old_batch_size is not None and old_batch_size < 1:
            raise ValueError(
                f"old_batch_size={old_batch_size} is invalid: expected an integer >= 1 or None"
            )
        self.memory = DictMemory(seed=self.args.seed) if memory is None else memory
        self.old_batch_size = old_batch_size or self.args.per_device_train_batch_size
        self.projector: Projector | None = None
        self._options: dict[str, Any] = {"layers": layers}
        if method is not None:
            self._options["method"] = method
        self._resumed: dict[str, Any] | None = None  # the method's state, until there is a step
        self.add_callback(_Saving(self))

    def remember(self, task: int | str, dataset: Any = None) -> None:
        """End a task: store samples of it, which later steps are projected against.

        Parameters
        ----------
        task : int or str
            Name of the task.
        dataset : Dataset, optional
            The samples of the task; it needs a length. Default: the training set.
            ``memory.per_task`` samples are drawn from it with the seed of the arguments.
        """
        dataset = self.train_dataset if dataset is None else dataset
        if not hasattr(dataset, "__len__"):
            raise TypeError(
                f"dataset is a {type(dataset).__name__} without a length, so samples cannot be "
                "drawn from it; pass a list or a dataset with the samples to keep"
            )
        if task in self.memory.tasks:
            raise ValueError(f"task={task!r} is in the memory already; use another name")
        draws = torch.Generator().manual_seed(self.args.seed + len(self.memory.tasks))
        chosen = torch.randperm(len(dataset), generator=draws)[: self.memory.per_task].tolist()
        # The collator of a loader drops the columns that the model does not take. Trainer keeps
        # evaluation loaders for later evaluations, but not test loaders.
        collate = self.get_test_dataloader(Subset(dataset, chosen)).collate_fn
        self.memory.add(task, collate([dataset[i] for i in chosen]))

    def train(
        self, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any
    ) -> Any:
        """Train as ``Trainer.train``; a checkpoint also restores the memory and the method."""
        if self.is_deepspeed_enabled or self.is_fsdp_enabled:
            name = "DeepSpeed" if self.is_deepspeed_enabled else "FSDP"
            raise ValueError(
                f"{type(self).__name__} does not work with {name} inside of Trainer, because it "
                "takes the gradients out of the parameters; use DistributedDataParallel"
            )
        folder = resume_from_checkpoint
        if folder is True:
            folder = get_last_checkpoint(self.args.output_dir)
        if folder:
            state = _checkpoints.load(Path(folder), STATE, type(self).__name__)
            self.memory.load_state_dict(state["memory"])
            self._resumed = state["method"]
            self.projector = None
        return super().train(resume_from_checkpoint, *args, **kwargs)

    def training_step(
        self, model: nn.Module, inputs: dict[str, Any], num_items_in_batch: Any = None
    ) -> Tensor:
        """Accumulate the gradient of a batch, and project it before an optimizer step."""
        loss: Tensor = super().training_step(model, inputs, num_items_in_batch)
        if self.memory.tasks and self.accelerator.sync_gradients:
            projector = self._projector_for(model)
            projector.project([partial(self._backward, model, t) for t in self.memory.tasks])
        return loss

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Add the share of corrected layers to the logs of training."""
        if "loss" in logs and self.projector is not None and self.projector.last is not None:
            logs["corrected"] = float(self.projector.last.corrected.mean())
        super().log(logs, start_time)

    def projection_state(self) -> dict[str, Any]:
        """Return what this class adds to a checkpoint: the memory and the state of the method."""
        method = self._resumed if self.projector is None else self.projector.method.state_dict()
        return {"memory": self.memory.state_dict(), "method": method}

    def _backward(self, model: nn.Module, task: int | str) -> None:
        """Run the loss of stored samples backward."""
        batch = self._prepare_inputs(trimmed(self.memory.sample(task, self.old_batch_size)))
        # Losses that are sums, such as a compute_loss_func, divide by the number of items.
        _, count = self.get_batch_samples(iter([batch]), 1, self.args.device)
        with self.compute_loss_context_manager():
            loss = self.compute_loss(model, batch, num_items_in_batch=count)
        self.accelerator.backward(loss.mean())

    def _projector_for(self, model: nn.Module) -> Projector:
        """Return the projector for the model as the trainer has wrapped it."""
        if self.projector is None or self.projector.model is not model:
            if self.projector is not None:
                self._resumed = self.projector.method.state_dict()
            # A GradScaler skips steps that overflow; without one an overflow is an error.
            scaled = self.accelerator.scaler is not None
            self.projector = Projector(
                model, overflow="skip" if scaled else "raise", **self._options
            )
            if self._resumed is not None:
                self.projector.method.load_state_dict(self._resumed)
                self._resumed = None
        return self.projector


class _Saving(TrainerCallback):
    """Adds the state of a ProjectedTrainer to its checkpoints."""

    def __init__(self, trainer: ProjectedTrainer) -> None:
        self._trainer = trainer

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Write the state beside that of the optimizer."""
        del control, kwargs
        if args.should_save and not args.save_only_model:
            folder = _checkpoints.folder_of(args, state)
            _checkpoints.save(folder, STATE, self._trainer.projection_state())
