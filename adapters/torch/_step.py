"""`Step`: the gradients that one step has filled in so far."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext

import torch
from torch import Tensor, nn

import gradproj as gp
from gradproj.adapters.torch._arguments import Overflow
from gradproj.adapters.torch._block_rows import Held
from gradproj.adapters.torch._rows import Rows, Task
from gradproj.adapters.torch._solver import Apart, Solver, added_lengths, is_choice


class Step:
    """One step, from its first gradient to its update; dropped afterwards.

    Parameters
    ----------
    rows : Rows
        The memory, of which this step is the only user.
    solver : Solver
        Turns the rows into the update.
    tasks : int, optional
        The number of old tasks, if it is known before the first gradient. A method that needs only
        one combination of the old gradients then gets that combination alone, in one row.
    held : dict, optional
        What `.grad` was, if the update is to be added to it.

    Attributes
    ----------
    apart : Apart or None
        Set by an engine that keeps some gradients in another form.
    """

    def __init__(
        self, rows: Rows, solver: Solver, tasks: int | None = None, held: Held | None = None
    ) -> None:
        self.rows = rows
        self.solver = solver
        self.held = held
        self.expected = tasks
        self.apart: Apart | None = None
        self.reduction = solver.begin(tasks)
        self.summed = self.reduction is not None and not is_choice(self.reduction)
        self.reset()

    def reset(self) -> None:
        """Drop the gradients that are there, for an engine that starts again."""
        self.rows.copied = 0
        # Which parameters have a gradient; not known for gradients that were written at once.
        self._touched: dict[Task, list[bool]] = {}
        self._written = False
        self._lengths: list[list[Tensor]] = []
        self._ready = False

    def _prepare(self) -> None:
        """Make room for the gradients, right before the first of them."""
        if self._ready:
            return
        self._ready = True
        self.rows.keep_apart(frozenset() if self.apart is None else self.apart.choose())
        self.rows.allocate(1 if self.reduction else self.expected or 0, summed=self.summed)
        if self.summed:
            self.rows.zero(0)

    @property
    def empty(self) -> bool:
        """Whether no gradient is there yet."""
        return not self._touched

    def needs(self, task: int) -> bool:
        """Whether the method looks at the gradient of an old task."""
        return self.reduction is None or task in self.reduction.tasks

    def backward(self, task: Task, loss: Tensor, *, retain_graph: bool = False) -> None:
        """Run a loss backward into the row of its task, and set every `.grad` to None."""
        recording = nullcontext() if self.apart is None else self.apart.recording(task)

        def run() -> None:
            # The record ends before `store` clears `.grad`: it takes gradients from there.
            with recording:
                torch.autograd.backward(loss, retain_graph=retain_graph)

        self.run(task, run)

    def run(self, task: Task, backward: Callable[[], object]) -> None:
        """Let a function fill the row of a task, and set every `.grad` to None."""
        self._prepare()
        self.rows.attach(self._place(task))
        parameters = self.rows.layout.parameters
        before = [p._version for p in parameters]
        backward()
        if before != [p._version for p in parameters]:
            raise RuntimeError(
                "a parameter changed during backward: an optimizer that steps inside backward "
                "hooks uses gradients that are not projected yet; call optimizer.step() after the "
                "projection instead"
            )
        self.store(task)

    def store(self, task: Task) -> None:
        """Move `.grad` into the row of a task, and set every `.grad` to None."""
        self._collect(task)
        self.rows.clear()

    def _collect(self, task: Task) -> None:
        self._prepare()
        place, weight = self._place(task), None
        if self.summed and task is not None:
            assert self.reduction is not None
            weight = float(self.reduction.weights[task])
        touched = self.rows.collect(place, weight)
        if weight is not None:
            self._lengths.append(self.rows.lengths(place))
            known = self._touched.get(place, touched)
            touched = [a or b for a, b in zip(known, touched, strict=True)]
        self._touched[place] = touched

    def write(self, gradients: Mapping[nn.Parameter, Tensor], tasks: int) -> None:
        """Take the gradients (T, *shape) of all old tasks that the method needs."""
        self._prepare()
        if self.summed:
            assert self.reduction is not None
            weights = self.reduction.weights[self.reduction.tasks].tolist()
            self._lengths.append(self.rows.add(gradients, weights))
            tasks = 1
        else:
            self.rows.write(gradients)
        self._touched |= {task: [] for task in range(tasks)}
        self._written = tasks > 0

    def take_new(self) -> None:
        """Take `.grad` as the new task's gradient; raise if no parameter has one."""
        if all(p.grad is None for p in self.rows.layout.parameters):
            raise ValueError(
                "no parameter has a .grad: run the new task's loss backward after the old tasks' "
                "gradients have been stored, right before project()"
            )
        self._collect(None)

    def tasks(self) -> int:
        """Return the number of old tasks in the rows; raise if one is missing."""
        found = {task for task in self._touched if task is not None}
        tasks = max(found, default=-1) + 1
        for task in range(tasks):
            if task not in found:
                raise ValueError(
                    f"task={task} has not been stored but a later one has; store(0) to "
                    f"store({tasks - 1}) come before project()"
                )
        return tasks

    def finish(self, overflow: Overflow) -> gp.Solution | None:
        """Leave the update in `.grad`; return the solution, or None for a step to be skipped."""
        rows, solver, tasks = self.rows, self.solver, self.tasks()
        if self._written:
            touched = rows.used(tasks, self._touched[None])
        else:
            touched = [any(column) for column in zip(*self._touched.values(), strict=True)]
        touched = solver.processes.share(rows, tasks, touched)
        reduction, parts = self.reduction, rows.parts(tasks)
        known = reduction is not None or self.apart is not None
        if not known and (reduction := solver.begin(tasks)) is not None:
            # The number of old tasks was not known before, so that each has a row of its own.
            if is_choice(reduction):
                parts = rows.chosen(reduction.tasks[0])
            else:
                parts, self._lengths = rows.summed(reduction.weights.tolist())
        solution: gp.Solution | None
        try:
            products = solver.measure(rows, parts, self.apart)
            scale = None
            if reduction is not None and self._lengths:
                weights = reduction.weights[reduction.tasks]
                scale = added_lengths(rows, self._lengths, weights)
            solution = solver.solve(products, reduction, scale, rows.epsilon)
            solver.combine(rows, parts, solution, self.apart)
        except gp.NotFiniteError:
            if overflow == "raise":
                raise
            solution = None
            rows.poison(self.apart.used if self.apart is not None else None)
        finally:
            if self.apart is not None:
                self.apart.clear()
        rows.hand_over(touched, self.held)
        if solution is None or reduction is None:
            return solution
        return reduction.expand(solution)

    def _place(self, task: Task) -> Task:
        """Return the task whose row a gradient goes to."""
        return 0 if self.reduction is not None and task is not None else task
