"""`Recorder`: follows a model's parameters and brings its gradients into the rows of the buffer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from gradproj.adapters.torch import checks, engines
from gradproj.adapters.torch.gradients import Gradients
from gradproj.adapters.torch.layers import Layers, group_parameters


class Recorder:
    """Which gradients of a step are in the buffer, for a model that may change between steps.

    Row 0 is the new task's, row i + 1 is old task i's.
    """

    layers: dict[str, tuple[str, ...]]

    def __init__(
        self, model: nn.Module, grouping: Layers, backend: str, *, sharded: bool = False
    ) -> None:
        self.model = model
        self._sharded = sharded
        self.copied = 0
        self._grouping = grouping
        self._backend = backend
        self._gradients: Gradients | None = None
        self._signature: list[tuple[Any, ...]] | None = None
        # Row to which parameters have a gradient there; unknown of rows written at once.
        self._stored: dict[int, list[bool]] = {}
        self._aimed: tuple[int, list[list[int]]] | None = None
        self._written = False
        self.sync()

    def __getstate__(self) -> dict[str, Any]:
        # The buffer belongs to this model's parameters. A copy has a model of its own, which may
        # not be complete yet while they are copied: it lays its buffer out when it needs it.
        return {**self.__dict__, "_gradients": None, "_signature": None, "_aimed": None}

    @property
    def gradients(self) -> Gradients:
        """The buffer."""
        if self._gradients is None:
            self._gradients = self._laid_out()
        return self._gradients

    @contextmanager
    def step(self) -> Iterator[None]:
        """Start a step with nothing recorded, and record nothing if it ends with an error."""
        self.forget()
        self.sync()
        try:
            yield
        except BaseException:
            self.forget()
            raise

    def forget(self) -> None:
        """Drop what is recorded."""
        self._stored = {}
        self._aimed = None
        self._written = False

    def aim(self, row: int, *, add: bool = False) -> None:
        """Let `.grad` be views of a row, zeroed unless backward is to add to what is there."""
        self.gradients.reserve(row + 1)
        self._aimed = row, self.gradients.aim(row, add)

    def collect(self, row: int, *, add: bool = False) -> None:
        """Record what is in `.grad` as a row, or as added to it."""
        if not self._stored:
            self.copied = 0
        self.gradients.reserve(row + 1)
        before = self._aimed[1] if self._aimed and self._aimed[0] == row else None
        touched, copied = self.gradients.collect(row, before, add)
        if add:
            touched = [a or b for a, b in zip(touched, self._stored[row], strict=True)]
        self._stored[row] = touched
        self.copied += copied

    def collect_new(self) -> None:
        """Record what is in `.grad` as the new task's; raise if there is nothing."""
        if all(p.grad is None for p in self.gradients.parameters):
            raise ValueError(
                "no parameter has a .grad: run the new task's loss backward after the old tasks' "
                "gradients have been stored, right before project()"
            )
        self.collect(0)

    def take(self, row: int, *, add: bool = False) -> None:
        """Record what is in `.grad` as a row that nobody else can get at: `.grad` is None then."""
        self.collect(row, add=add)
        self.gradients.clear()

    def write(self, gradients: Mapping[nn.Parameter, Tensor], tasks: int) -> None:
        """Record the gradients of all old tasks at once."""
        self.gradients.reserve(tasks + 1)
        self.gradients.write(gradients)
        self._stored = {task + 1: [] for task in range(tasks)}
        self._written = True
        self.copied = 0

    def tasks(self) -> int:
        """Return the number of old tasks; raise if one is missing."""
        tasks = max(self._stored, default=0)
        for task in range(tasks):
            if task + 1 not in self._stored:
                raise ValueError(
                    f"task={task} has not been stored but a later one has; store(0) to "
                    f"store({tasks - 1}) come before project()"
                )
        return tasks

    def touched(self) -> list[bool]:
        """Return which parameters have a gradient in any row."""
        if self._written:
            return self.gradients.used(self.tasks(), self._stored[0])
        return [any(column) for column in zip(*self._stored.values(), strict=True)]

    def sync(self) -> None:
        """Lay the buffer out anew if the model's parameters are no longer what they were."""
        model = unwrapped(self.model)
        parameters = trainable(model)
        signature = [(p, p.dtype, p.device, p.shape, p.stride()) for p in parameters]
        known = self._signature
        if (
            known is not None
            and len(known) == len(signature)
            and all(a[0] is b[0] and a[1:] == b[1:] for a, b in zip(known, signature, strict=True))
        ):
            return
        if self._stored:
            self.forget()
            raise RuntimeError(
                "the model's parameters changed after store(), or the projector was copied; store "
                "the old tasks' gradients again"
            )
        if not parameters:
            raise ValueError("model has no parameter that requires a gradient")
        if self._gradients is not None:
            # An optimizer would go on moving a parameter that has been frozen with what it left.
            self._gradients.release(parameters)
        engines.refuse_sparse(model)
        checks.parameters(model, sharded=self._sharded)
        self.layers = group_parameters(model, self._grouping)
        self._gradients = self._laid_out()
        self._signature = signature
        self._aimed = None

    def _laid_out(self) -> Gradients:
        named = dict(unwrapped(self.model).named_parameters())
        return Gradients(
            [[named[name] for name in members] for members in self.layers.values()], self._backend
        )


def trainable(model: nn.Module) -> list[nn.Parameter]:
    """All parameters that require a gradient, a tied one as often as it occurs.

    It is called at each step, where `model.parameters()` would take longer than the projection of a
    small layer.
    """
    found: list[nn.Parameter] = []
    modules = [model]
    for module in modules:
        found += [p for p in module._parameters.values() if p is not None and p.requires_grad]
        modules += [child for child in module._modules.values() if child is not None]
    return found


def unwrapped(model: nn.Module) -> nn.Module:
    """Return the network inside torch's wrappers, whose names people know."""
    if isinstance(model, (nn.parallel.DistributedDataParallel, nn.DataParallel)):
        return unwrapped(model.module)
    # What torch.compile returns, known by its name: importing the type takes two seconds.
    if type(model).__name__ == "OptimizedModule":
        return unwrapped(model.get_submodule("_orig_mod"))
    return model
