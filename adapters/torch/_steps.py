"""`Steps`: the steps of one projector, and the rows that they share."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

from torch import nn

import gradproj as gp
from gradproj.adapters.torch._arguments import Backend, Overflow
from gradproj.adapters.torch._block_rows import Held
from gradproj.adapters.torch._layout import Layout, replicas
from gradproj.adapters.torch._rows import Rows
from gradproj.adapters.torch._shards import reshard
from gradproj.adapters.torch._solver import Solver
from gradproj.adapters.torch._statistics import keep_running_statistics
from gradproj.adapters.torch._step import Step
from gradproj.adapters.torch._user import User
from gradproj.adapters.torch.layers import Layers


class Steps:
    """Starts steps on rows that follow the model's parameters.

    A step runs at once (:meth:`started`), or stays open from the first :meth:`store` to
    :meth:`project`.

    Parameters
    ----------
    model : Module
        The model that is trained.
    layers : Layers
        How its parameters are grouped.
    backend : str
        The library that measures inner products, or "auto".
    solver : Solver
        Turns the rows into the update.
    """

    def __init__(self, model: nn.Module, layers: Layers, backend: Backend, solver: Solver) -> None:
        self.solver = solver
        self._model = model
        self._grouping = layers
        self._backend: Backend = backend
        self._rows: Rows | None = None
        self._open: Step | None = None  # between store() and project()
        self._user = User()

    def __getstate__(self) -> dict[str, Any]:
        # The buffer belongs to this model's parameters. A copy has a model of its own, which may
        # not be complete yet while it is copied. The copy makes its buffer when it needs it.
        return {**self.__dict__, "_rows": None, "_open": None, "_user": User(lost=self._stored)}

    @property
    def copied(self) -> int:
        """Number of gradients that were copied into the rows."""
        return self._rows.copied if self._rows is not None else 0

    @property
    def _stored(self) -> bool:
        """Whether gradients are stored that no step has used."""
        return self._open is not None and not self._open.empty

    def rows(self) -> Rows:
        """Return the rows, laid out again if the model's parameters have changed."""
        sharded = self.solver.processes.mode == "sharded"
        if sharded:
            reshard(self._model)
        if self._rows is not None and self._rows.layout.describes(self._model):
            return self._rows
        if self._user.lost or self._stored:
            self.reset()
            raise RuntimeError(
                "the model's parameters changed after store(), or the projector was copied; store "
                "the old tasks' gradients again"
            )
        reshard(self._model)  # also where DTensors are refused
        layout = Layout.of(self._model, self._grouping, sharded=sharded)
        rows = Rows(layout, self._backend)
        if self._rows is not None:
            self._rows.release(layout.parameters)
        self._rows, self._open = rows, None
        return rows

    @contextmanager
    def started(self, tasks: int | None) -> Iterator[Step]:
        """Start a step that adds to `.grad`; if it raises an error, `.grad` stays as it was."""
        with self._user.alone():
            self.reset()  # stored gradients do not count in a step of its own
            rows = self.rows()
            self.solver.processes.warn(self._model)
            held = self._put_aside(rows)
            try:
                yield Step(rows, self.solver, tasks, held)
            except BaseException:
                rows.restore(held)
                raise

    def attach(self, task: int | None) -> None:
        """Point every `.grad` at the zeroed row of a task."""
        with self._user.alone():
            rows = self.rows()
            rows.keep_apart(frozenset())
            rows.allocate(0)
            rows.attach(task)

    def store(self, task: int) -> None:
        """Move `.grad` into the row of an old task."""
        with self._user.alone():
            rows = self.rows()
            rows.refuse_updates()
            if self._open is None:
                self._open = Step(rows, self.solver)
            self._open.store(task)
            self._user.claim()

    def project(
        self,
        passes: Sequence[Callable[[], object]],
        *,
        running_statistics: bool,
        overflow: Overflow,
    ) -> gp.Solution | None:
        """Replace the new gradient in `.grad` by the update, and return how it was found."""
        with self._user.alone():
            rows = self.rows()
            step = self._open or Step(rows, self.solver)
            step.tasks()  # raises before anything is changed
            if passes:
                step = self._run(rows, passes, running_statistics)
            elif not step.empty:
                rows.refuse_updates()
            step.take_new()
            try:
                return step.finish(overflow)
            finally:
                self.reset()

    def reset(self) -> None:
        """Drop the stored gradients."""
        self._open = None
        self._user.free()

    def _run(
        self, rows: Rows, passes: Sequence[Callable[[], object]], running_statistics: bool
    ) -> Step:
        """Fill the rows of all old tasks while the new gradient waits; return the step."""
        if self._stored:
            raise RuntimeError(
                "gradients of old tasks are stored already; pass old_passes or call store(), not "
                "both, or call reset() to drop the stored ones"
            )
        rows.refuse_updates()
        new = self._put_aside(rows)
        kept = nullcontext() if running_statistics else keep_running_statistics(self._model)
        step = Step(rows, self.solver, len(passes))
        try:
            with kept:
                for task, backward in enumerate(passes):
                    if step.needs(task):
                        step.run(task, backward)
        finally:
            rows.restore(new)
        return step

    def _put_aside(self, rows: Rows) -> Held:
        """Take every `.grad` away and return it."""
        held = rows.put_aside()
        if replicas(self._model) is None:
            return held
        # With gradient_as_bucket_view the next backward call writes to the old `.grad`.
        return {p: grad.clone() for p, grad in held.items()}
