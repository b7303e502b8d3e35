"""`ProjectCallback`: steps of a Lightning Trainer, projected against stored samples."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from itertools import count
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor

import gradproj as gp
from gradproj.adapters.lightning._samples import Form, put_together, take_apart
from gradproj.adapters.lightning._task import (
    TaskCallback,
    has_length,
    quiet,
    train_loader,
    training_step,
)
from gradproj.adapters.torch import EpisodicMemory, Layers, Projector

Task = int | str


class ProjectCallback(TaskCallback):
    """Train on new tasks with updates that do not increase the losses of old tasks.

    Each optimizer step solves the problem of its method. For :class:`gradproj.GEM` this is

        min ½‖w − g‖²  subject to  gᵢᵀw ≥ 0  for each old task i,

    where g is the accumulated gradient of the new task and gᵢ is the gradient of the loss on stored
    samples of task i. The optimizer gets w. Each call of ``trainer.fit`` is one task. When it ends,
    samples of its training set are stored.

    Parameters
    ----------
    memory : EpisodicMemory, optional
        The stored samples. Default: 256 random samples per task.
    method : gradproj.Method, optional
        The problem that is solved. The default is that of ``Projector``.
    layers : str, callable or list of groups of names
        Parts of the model that are projected separately, as for ``Projector``.
    old_batch_size : int, optional
        Number of stored samples per old task and step. Default: the batch size of the training
        data loader.
    loss : callable, optional
        ``loss(module, batch)`` returns the loss of stored samples. Default: the module's
        ``training_step``, with its calls of ``log`` ignored. Pass a function if the training step
        has other side effects, for example on metrics.

    Attributes
    ----------
    memory : EpisodicMemory
        The stored samples. Task 0 is the first call of ``fit``.
    projector : Projector or None
        The projector of the last call of ``fit``. ``projector.last`` has the solution of its last
        step.

    Notes
    -----
    It works with automatic optimization. In manual optimization the training step itself calls the
    :class:`gradproj.adapters.torch.Projector`; the page on Lightning in the documentation has an
    example.

    Accumulated gradients are projected once per optimizer step, before they are clipped. A step
    takes one backward pass per old task in addition to those of the new task. It needs memory for
    one gradient per old task, or for one in total with :class:`gradproj.AGEM`.

    The share of layers whose update was changed is logged as ``corrected``.

    Checkpoints contain the stored samples and the state of the method, so that a resumed run equals
    an uninterrupted one. With several processes, all of them use the same stored samples.

    Examples
    --------
    .. code-block:: python

        project = ProjectCallback(EpisodicMemory(per_task=32, policy="random"))
        for loader in loaders:  # one per task
            Trainer(max_epochs=3, callbacks=[project]).fit(module, loader)
    """

    def __init__(
        self,
        memory: EpisodicMemory | None = None,
        *,
        method: gp.Method | None = None,
        layers: Layers = "module",
        old_batch_size: int | None = None,
        loss: Callable[[LightningModule, Any], Tensor] | None = None,
    ) -> None:
        super().__init__()
        if memory is not None and not isinstance(memory, EpisodicMemory):
            raise TypeError(
                f"memory is a {type(memory).__name__}; pass a "
                "gradproj.adapters.torch.EpisodicMemory, for example EpisodicMemory(per_task=32)"
            )
        if method is not None and not isinstance(method, gp.Method):
            raise TypeError(
                f"method is a {type(method).__name__}; pass an instance, for example gradproj.GEM()"
            )
        if old_batch_size is not None and old_batch_size < 1:
            raise ValueError(
                f"old_batch_size={old_batch_size} is invalid: expected an integer >= 1 or None"
            )
        self.memory = EpisodicMemory(policy="random") if memory is None else memory
        self.old_batch_size = old_batch_size
        self.loss = loss
        self.projector: Projector | None = None
        self._options: dict[str, Any] = {"layers": layers}
        if method is not None:
            self._options["method"] = method
        self._forms: dict[Task, Form] = {}
        self._method_state: dict[str, Any] | None = None  # of earlier tasks or of a checkpoint
        self._size = 0

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Refuse settings for which a projection from outside of the training step is wrong."""
        super().setup(trainer, pl_module, stage)
        if stage != "fit":
            return
        if not pl_module.automatic_optimization:
            raise ValueError(
                f"{type(pl_module).__name__} uses manual optimization, for which ProjectCallback "
                "does not work: call a gradproj.adapters.torch.Projector in training_step instead, "
                "between self.manual_backward(loss) and optimizer.step()"
            )
        if getattr(trainer.precision_plugin, "scaler", None) is not None:
            raise ValueError(
                f"precision={trainer.precision!r} scales the loss, and ProjectCallback cannot skip "
                'a step in which only a stored batch overflows: use precision="bf16-mixed", or '
                "manual optimization"
            )

    def begin(self, trainer: Trainer, module: LightningModule) -> None:
        """Build the projector for this task."""
        loader = train_loader(trainer, self)
        dataset = getattr(loader, "dataset", None)
        if not has_length(dataset) or not hasattr(loader, "collate_fn"):
            raise TypeError(
                f"the training data are a {type(loader).__name__} of a {type(dataset).__name__} "
                "without a length, from which samples cannot be drawn; use a "
                "torch.utils.data.DataLoader of a data set that has __len__ and __getitem__"
            )
        size = self.old_batch_size or getattr(loader, "batch_size", None)
        if size is None:
            raise ValueError(
                "old_batch_size=None needs a training data loader with a batch_size, and this one "
                "has none; pass ProjectCallback(old_batch_size=…)"
            )
        self._size = size
        if self.projector is not None:
            self._method_state = self.projector.method.state_dict()
        self.projector = Projector(
            module, distributed="average" if trainer.world_size > 1 else None, **self._options
        )
        if self._method_state is not None:
            self.projector.method.load_state_dict(self._method_state)
            self._method_state = None

    def on_before_optimizer_step(
        self, trainer: Trainer, pl_module: LightningModule, optimizer: Any
    ) -> None:
        """Replace the accumulated gradient by the update."""
        del optimizer
        # Lightning makes a step without gradients if the training step returned None.
        if not self.memory.tasks or all(p.grad is None for p in pl_module.parameters()):
            return
        assert self.projector is not None
        self.projector.project(
            [partial(self._backward, trainer, pl_module, task) for task in self.memory.tasks]
        )
        assert self.projector.last is not None
        self.log("corrected", float(self.projector.last.corrected.mean()))

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Store samples of the task that has ended."""
        del pl_module
        loader = train_loader(trainer, self)
        tasks = self.memory.tasks
        task = next(number for number in count(len(tasks)) if number not in tasks)
        # Drawn from the data set instead of the batches: then all processes store the same samples.
        draws = torch.Generator().manual_seed(self.memory.generator.initial_seed() + task)
        chosen = torch.randperm(len(loader.dataset), generator=draws)[: self.memory.per_task]
        batch = loader.collate_fn([loader.dataset[i] for i in chosen.tolist()])
        form, tensors = take_apart(batch)
        self.memory.add(task, *tensors)
        self._forms[task] = form

    def state_dict(self) -> dict[str, Any]:
        """Return the stored samples and the state of the method."""
        method = self._method_state
        if self.projector is not None:
            method = self.projector.method.state_dict()
        return {"memory": self.memory.state_dict(), "forms": dict(self._forms), "method": method}

    def restore(self, state: dict[str, Any]) -> None:
        """Resume from a :meth:`state_dict`."""
        self.memory.load_state_dict(state["memory"])
        self._forms = dict(state["forms"])
        self._method_state = state["method"]
        self.projector = None

    def _backward(self, trainer: Trainer, module: LightningModule, task: Task) -> None:
        """Run the loss of stored samples backward."""
        tensors = self.memory.sample(task, self._size)
        batch = put_together(self._forms.get(task, "sequence"), tensors)
        batch = trainer.strategy.batch_to_device(batch)
        with quiet(module), trainer.precision_plugin.train_step_context():
            loss = (self.loss or training_step)(module, batch)
        if isinstance(loss, Mapping):
            loss = loss.get("loss")
        if not isinstance(loss, Tensor):
            raise TypeError(
                f"the loss of the stored samples of task {task!r} is a {type(loss).__name__}; let "
                "training_step return a tensor or a dict with a 'loss', or pass "
                "ProjectCallback(loss=…)"
            )
        module.backward(loss)
