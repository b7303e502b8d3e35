"""`StoredSteps`: projection of gradients that the caller has computed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import distributed as dist
from torch import nn

import gradproj as gp
from gradproj.adapters.torch import _arguments
from gradproj.adapters.torch._arguments import Backend, Distributed, Overflow
from gradproj.adapters.torch._eager import eager
from gradproj.adapters.torch._processes import Processes
from gradproj.adapters.torch._solver import Solver
from gradproj.adapters.torch._step import Step
from gradproj.adapters.torch._steps import Steps
from gradproj.adapters.torch.layers import Layers


class StoredSteps:
    """The part of :class:`Projector` that does not run the model.

    It holds the settings and the state of a projector. The caller computes each gradient, and
    :meth:`store` and :meth:`project` take it from ``.grad``. The parameters are those of
    :class:`Projector`.
    """

    def __init__(
        self,
        model: nn.Module,
        method: gp.Method,
        layers: Layers,
        *,
        backend: Backend,
        running_statistics: bool,
        overflow: Overflow,
        distributed: Distributed | None,
        process_group: dist.ProcessGroup | None,
    ) -> None:
        _arguments.model(model)
        _arguments.method(method)
        _arguments.choices(backend=backend, overflow=overflow, distributed=distributed)
        self.model = model
        self.running_statistics = running_statistics
        self.overflow: Overflow = overflow
        self.last: gp.Solution | None = None
        solver = Solver(method, Processes(distributed, process_group))
        self._steps = Steps(model, layers, backend, solver)
        self._steps.rows()  # raises for layers that do not fit the model

    @property
    def method(self) -> gp.Method:
        """The problem that is solved for each layer."""
        return self._steps.solver.method

    @method.setter
    def method(self, method: gp.Method) -> None:
        _arguments.method(method)
        self._steps.solver.method = method

    @property
    def layers(self) -> dict[str, tuple[str, ...]]:
        """Layer name to the names of its parameters."""
        return dict(self._steps.rows().layout.names)

    @property
    def backend(self) -> str:
        """The library that measures the inner products."""
        return self._steps.rows().backend

    @property
    def copied(self) -> int:
        """Number of gradients of the last step that were computed elsewhere and copied.

        The loop copies none unless a hook replaces ``.grad``. vmap copies those of all old tasks.
        """
        return self._steps.copied

    @eager
    def zero_grad(self, task: int | None = None) -> None:
        """Point every ``.grad`` at a zeroed row of the buffer, so that nothing is copied later.

        Parameters
        ----------
        task : int, optional
            The old task whose gradient comes next; the new task's unless given. Backward calls
            then accumulate, as after ``optimizer.zero_grad()``.
        """
        _arguments.task(task)
        self._steps.attach(task)

    @eager
    def store(self, task: int) -> None:
        """Take what is in ``.grad`` as the gradient of an old task.

        It is copied into the buffer unless :meth:`zero_grad` has put it there to begin with, and
        ``.grad`` is set to None. It stays there until :meth:`project`. To start a step again,
        use :meth:`reset`.

        Parameters
        ----------
        task : int
            Number of the old task: 0, 1, 2, …
        """
        _arguments.task(task)
        self._steps.store(task)

    def reset(self) -> None:
        """Drop the stored gradients, for a step that is not to be finished."""
        self._steps.reset()

    @eager
    def project(self, old_passes: Iterable[Callable[[], object]] = ()) -> None:
        """Take what is in ``.grad`` as the new gradient, and replace it by the update.

        This is the exact form of gradient accumulation: gradients are accumulated first, and then
        projected. The stored gradients are used up.

        Parameters
        ----------
        old_passes : iterable of callables
            One function per old task that runs the backward pass of its loss, in place of
            :meth:`zero_grad`, backward and :meth:`store`. Use it where a trainer has its own
            backward call, such as ``accelerator.backward(loss)``. Functions whose gradient the
            method does not need are not called.

        Examples
        --------
        Gradient accumulation over two micro-batches:

        >>> import torch
        >>> from gradproj.adapters.torch import Projector
        >>> model = torch.nn.Linear(2, 1, bias=False)
        >>> projector = Projector(model, gp.GEM())
        >>> projector.zero_grad(task=0)
        >>> for micro in torch.tensor([[[-2.0, 0.0]], [[0.0, 2.0]]]):
        ...     (model(micro).sum() / 2).backward()
        >>> projector.store(0)
        >>> projector.zero_grad()
        >>> model(torch.tensor([[1.0, 0.0]])).sum().backward()
        >>> projector.project()
        >>> model.weight.grad
        tensor([[0.5000, 0.5000]])

        The same update, with the old task's gradient computed on demand:

        >>> model.zero_grad()
        >>> model(torch.tensor([[1.0, 0.0]])).sum().backward()
        >>> projector.project([lambda: model(torch.tensor([[-1.0, 1.0]])).sum().backward()])
        >>> model.weight.grad
        tensor([[0.5000, 0.5000]])
        """
        self.last = self._steps.project(
            _arguments.passes(old_passes),
            running_statistics=self.running_statistics,
            overflow=self.overflow,
        )

    def state_dict(self) -> dict[str, Any]:
        """Return everything that a later step depends on: the draws of :class:`gradproj.SGEM`.

        ``torch.load(weights_only=True)`` reads it back.
        """
        return {
            "layers": {name: list(members) for name, members in self.layers.items()},
            "method": self.method.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume from a :meth:`state_dict`."""
        mine = {name: list(members) for name, members in self.layers.items()}
        missing = [name for name in ("layers", "method") if name not in state]
        if missing:
            raise ValueError(f"state has no {missing}: pass the state_dict() of a Projector")
        if state["layers"] != mine:
            raise ValueError(
                f"state has layers {state['layers']} and the projector {mine}; build the model "
                "and the projector as they were"
            )
        self.method.load_state_dict(state["method"])

    @contextmanager
    def _step(self, tasks: int | None) -> Iterator[Step]:
        """Start a step; if it raises an error, there is no last solution."""
        with self._steps.started(tasks) as step:
            try:
                yield step
            except BaseException:
                self.last = None
                raise
