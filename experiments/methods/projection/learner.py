"""The training step that all gradient-projection methods share."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal, cast

from torch import Tensor, nn

import gradproj as gp
from gradproj.adapters.torch import Layers, Projector
from gradproj.experiments.common import seeds
from gradproj.experiments.methods.learner import Learner
from gradproj.experiments.methods.memory.exemplars import Exemplars
from gradproj.experiments.methods.memory.features import embed, require_network
from gradproj.experiments.methods.memory.old_tasks import OldTasks, TaskMemories
from gradproj.experiments.methods.memory.sub_buffers import SubBuffers
from gradproj.experiments.methods.setup import Setup, Step
from gradproj.experiments.networks import Network
from gradproj.experiments.streams import Task

__all__ = [
    "BEFORE_REPLAY",
    "LayerNames",
    "ProjectionLearner",
    "Replay",
    "Rule",
    "layer_groups",
    "replay_alone",
]

# Runs that were stored before the option `replay` existed added the sum of the old gradients.
BEFORE_REPLAY = "sum"

LayerNames = Literal["module", "tensor", "child", "five", "all"]
Replay = Literal["mean", "sum"]
Rule = Literal["always", "violated", "part-margin"]


def layer_groups(model: nn.Module, layers: LayerNames) -> Layers:
    """Return the groups for "five" (five consecutive tensors each), and other values unchanged."""
    if layers != "five":
        return layers
    names = [name for name, _ in model.named_parameters()]
    return [names[i : i + 5] for i in range(0, len(names), 5)]


def replay_alone(
    weight: float, form: str, rule: str = "always", layers: str = "all"
) -> tuple[str, dict[str, Any]]:
    """Return the control of a method that adds `weight` of the old gradients' mean or sum.

    A rule that depends on a violation is tested on each of `layers`, as in the method itself.

    Examples
    --------
    >>> replay_alone(0.5, "sum"), replay_alone(0.0, "sum")
    (('replay', {'strength': 0.5, 'replay': 'sum'}), ('single', {}))
    >>> replay_alone(0.5, "sum", "violated", "module")[1]
    {'strength': 0.5, 'replay': 'sum', 'rule': 'violated', 'layers': 'module'}
    """
    if not weight:
        return "single", {}
    options = {"strength": weight, "replay": form}
    # Without a condition the layers have no effect.
    return "replay", options if rule == "always" else {**options, "rule": rule, "layers": layers}


class ProjectionLearner(Learner):
    """Step along the new gradient, projected against the gradients of the old tasks.

    A method implements `projection()`. It may also override `old_batches`, which yields one batch
    per gradient to project against.

    Where the task is unknown at test time, the memory is one buffer of exemplars, and random parts
    of it take the place of old tasks.
    """

    scenarios = ("task", "domain", "class")
    augments = True
    saved = (*Learner.saved, "memory", "projector")

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self.memory = self._build_memory()
        layers: LayerNames = getattr(self.options, "layers", "all")
        # "auto" is safe: the loss of `observe` has no side effects on old tasks' batches.
        self.projector = Projector(
            self.model, self.projection(), layers=layer_groups(self.model, layers), engine="auto"
        )

    def projection(self) -> gp.Method:
        """Return the method that the projector solves."""
        raise NotImplementedError

    def stored_samples(self) -> int:
        """Count the samples in the memories, or in the one buffer."""
        return self.memory.stored()

    def old_tasks(self) -> int:
        """Count the old tasks, or the parts of the buffer in their place."""
        return self.memory.count(self.current)

    def effort(self, task: Task) -> float:
        """Return the samples per step, of the new task and of all old ones."""
        tasks = self.memory.count(task.index)
        return self.config.batch + tasks * (self.config.memory.batch or self.config.memory.per_task)

    def old_batches(self) -> Iterable[tuple[Tensor, ...]]:
        """Draw a batch from the memory of each old task, with the outputs that compete there."""
        size = self.config.memory.batch
        for task in range(self.old_tasks()):
            x, y = self.memory.sample(task, size) if size else self.memory.all(task)
            yield x, y, self.mask(task)

    def observe(self, task: Task, *batch: Tensor) -> Step:
        """Make one projected step, then remember the batch."""
        x, y = batch
        self.memory.redraw()
        images = self.augmented(x)
        olds = [(self.augmented(old), *rest) for old, *rest in self.old_batches()]
        seen: list[Tensor] = []

        def loss(model: nn.Module, *sample: Tensor) -> Tensor:
            value = self.loss(model, *sample)
            if sample[0] is images:
                seen.append(value.detach())
            return value

        self.optimizer.zero_grad()
        self.projector.backward_batches(loss, (images, y, self.mask(task)), olds)
        self.optimizer.step()
        self.memory.add(task.index, x, y)
        return self.describe(seen[-1])

    def end_task(self, task: Task) -> None:
        """Choose the exemplars of the new classes, if the memory is one buffer."""
        self.memory.end_task(task, self.seen(), self._features)

    def describe(self, loss: Tensor) -> Step:
        """Report the loss of a step, the share of corrected layers and their ranks."""
        last = self.projector.last
        if last is None or self.current == 0:
            return Step(loss)
        return Step(loss, float(last.corrected.mean()), last.rank.tolist())

    def _features(self, x: Tensor) -> Tensor:
        assert isinstance(self.model, Network)
        return embed(self.model, x)

    def _build_memory(self) -> OldTasks:
        memory, seed = self.config.memory, seeds.derive(self.config.seed, "memory")
        if self.stream.scenario != "class":
            policy = cast(Any, memory.policy)  # checked by the memory
            return TaskMemories(memory.per_task, policy, seed, self.setup.device)
        require_network(self.model, self.config.network)
        budget = memory.budget(len(self.stream.tasks))
        exemplars = Exemplars(budget, memory.per_class, memory.policy, seed)
        exemplars.share(self.stream.outputs)  # raises now if the last task would not fit
        seed = seeds.derive(self.config.seed, "buffers")
        return SubBuffers(exemplars, memory.buffers, seed, self.setup.device)
