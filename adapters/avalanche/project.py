"""`ProjectPlugin`: steps of an Avalanche strategy, projected against stored samples."""

from __future__ import annotations

from functools import partial
from itertools import count
from typing import Any

import torch
from avalanche.training.plugins import SupervisedPlugin
from torch.utils.data import default_collate

import gradproj as gp
from gradproj.adapters.avalanche import _strategy
from gradproj.adapters.torch import EpisodicMemory, Layers, Projector

Task = int | str


class ProjectPlugin(SupervisedPlugin):
    """Train on new experiences with updates that do not increase the losses of old ones.

    Each step solves the problem of its method. For :class:`gradproj.GEM` this is

        min ½‖w − g‖²  subject to  gᵢᵀw ≥ 0  for each old experience i,

    where g is the gradient of the strategy's loss and gᵢ is the gradient of its criterion on stored
    samples of experience i. The optimizer gets w.

    Parameters
    ----------
    memory : EpisodicMemory, optional
        The stored samples. Default: 256 random samples per experience.
    method : gradproj.Method, optional
        The problem that is solved. The default is that of ``Projector``.
    layers : str, callable or list of groups of names
        Parts of the model that are projected separately, as for ``Projector``.
    old_batch_size : int, optional
        Number of stored samples per old experience and step. Default: the strategy's
        ``train_mb_size``.

    Attributes
    ----------
    memory : EpisodicMemory
        The stored samples: inputs, targets and task labels. Task 0 is the first experience.
    projector : Projector or None
        ``projector.last`` has the solution of the last step.

    Notes
    -----
    Terms that other plugins add to the loss, such as those of ``EWCPlugin``, are projected with the
    new gradient. Models that grow between experiences and multi-head models work.

    A step takes one backward pass per old experience in addition to that of the strategy, and
    memory for one gradient per old experience, or for one in total with :class:`gradproj.AGEM`.

    Examples
    --------
    .. code-block:: python

        plugin = ProjectPlugin(EpisodicMemory(per_task=256, policy="random"), method=gp.GEM())
        strategy = Naive(model=model, optimizer=optimizer, plugins=[plugin])
        for experience in benchmark.train_stream:
            strategy.train(experience)
    """

    def __init__(
        self,
        memory: EpisodicMemory | None = None,
        *,
        method: gp.Method | None = None,
        layers: Layers = "module",
        old_batch_size: int | None = None,
    ) -> None:
        super().__init__()
        self._boundaries = _strategy.Boundaries()
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
        self.projector: Projector | None = None
        self._options: dict[str, Any] = {"layers": layers}
        if method is not None:
            self._options["method"] = method

    def before_training_exp(self, strategy: Any, *args: Any, **kwargs: Any) -> None:
        """Build the projector for the strategy's model."""
        del args, kwargs
        if self.projector is None:
            self.projector = Projector(strategy.model, **self._options)
        if self.projector.model is not strategy.model:
            raise ValueError(
                "the plugin was used with another model before, whose samples it has stored; make "
                "a new ProjectPlugin for each model"
            )

    def after_backward(self, strategy: Any, *args: Any, **kwargs: Any) -> None:
        """Replace the gradient by the update."""
        del args, kwargs
        if not self.memory.tasks:
            return
        assert self.projector is not None
        current = strategy.mbatch, strategy.mb_output
        try:
            self.projector.project(
                [partial(self._backward, strategy, task) for task in self.memory.tasks]
            )
        finally:
            strategy.mbatch, strategy.mb_output = current

    def after_training_exp(self, strategy: Any, *args: Any, **kwargs: Any) -> None:
        """Store samples of the experience that has ended."""
        del args, kwargs
        experience = self._boundaries.ended(strategy, type(self).__name__)
        if experience is None:
            return
        dataset, tasks = experience.dataset, self.memory.tasks
        task = next(number for number in count(len(tasks)) if number not in tasks)
        draws = torch.Generator().manual_seed(self.memory.generator.initial_seed() + task)
        chosen = torch.randperm(len(dataset), generator=draws)[: self.memory.per_task].tolist()
        collate = _strategy.collate_of(dataset) or default_collate
        self.memory.add(task, *collate([dataset[i] for i in chosen]))

    def _backward(self, strategy: Any, task: Task) -> None:
        """Run the criterion of stored samples backward."""
        size = self.old_batch_size or strategy.train_mb_size
        _strategy.forward(strategy, self.memory.sample(task, size))
        strategy.criterion().backward()
