"""`Projector`: the gradients of a model, projected in place of a plain backward call."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence, Sized
from functools import partial
from typing import Any

import numpy as np
from torch import Tensor, nn
from torch import distributed as dist

import gradproj as gp
from gradproj.adapters.torch import checks, engines, passes, reductions, states
from gradproj.adapters.torch.distributed import Processes
from gradproj.adapters.torch.layers import Layers
from gradproj.adapters.torch.passes import Loss
from gradproj.adapters.torch.recorder import Recorder
from gradproj.adapters.torch.reductions import SumRow


class Projector:
    """Continual learning for a training loop: projects the new gradient against the old tasks'.

    For each layer it solves the method's problem, for example with :class:`gradproj.Decomposed`

        min ½‖w − g‖²  subject to  ḡᵀw ≥ 0  and  B w = 0,

    where g is the new task's gradient, ḡ the mean of the old tasks' and the rows of B a basis of
    their differences, and leaves w in ``.grad`` for any optimizer.

    Parameters
    ----------
    model : Module
        All that is trained. Parameters may be frozen, added or replaced between steps. One that
        the losses use but the model does not have gets the gradients of all of them, old and new.
    method : gradproj.Method
        What is solved: ``gp.Decomposed()``, ``gp.GEM()``, ``gp.AGEM()``, ``gp.SGEM()``.
    layers : str, callable or list of groups of names
        ``"module"`` (weight and bias of a submodule together), ``"tensor"``, ``"child"`` (top-level
        children), ``"all"`` (one layer), a function from a parameter's name to its layer, or the
        groups.
    backend : {"auto", "numpy", "cupy", "torch"}
        Library that measures the inner products on the buffer's own memory. "auto" takes NumPy on
        the CPU and, on CUDA, CuPy if it is installed and torch otherwise.
    engine : {"loop", "vmap", "auto"}
        How :meth:`backward_batches` computes the old tasks' gradients: one backward after the
        other, or all at once by ``torch.func.vmap``, which calls the loss once for all old tasks.
        The loss must then do nothing but return a value: what it stores or counts would be of no
        use outside. "auto" takes vmap where it has been measured to be faster (networks of linear
        layers, activations and layer norms, with ten or more old tasks whose batches have one
        shape) and the loop otherwise.
    running_statistics : bool
        Whether memory passes move the running statistics of batch norm. They are normalised by
        their own batch's statistics either way.
    overflow : {"raise", "skip"}
        What a NaN or infinite gradient does: an error that names the layer, or (for mixed
        precision) NaN in ``.grad``, on which ``GradScaler.step`` skips the step.
    distributed : {None, "average", "sharded"}
        "average": every process computed its share of each loss; the gradients are averaged before
        they are projected. "sharded": every process holds a part of each parameter; only the inner
        products are summed over the processes.
    process_group : ProcessGroup, optional
        The processes that take part; all of them unless given.

    Attributes
    ----------
    engine : str
        What "auto" came to.
    last : gradproj.Solution or None
        Coefficients, rank, multiplier and `corrected` of the last step, one entry a layer; None
        when that step was skipped.

    Notes
    -----
    A parameter that a loss does not use counts as a zero gradient there; one for which no backward
    call of the step has a gradient gets ``.grad = None``, so that the optimizer passes over it as
    it always does. What momentum, mixed precision and clipping mean here is told in
    :mod:`gradproj.adapters.torch`. A copied or pickled projector takes its model along, but no
    gradients: copy it between steps.

    Examples
    --------
    >>> import torch
    >>> import gradproj as gp
    >>> from gradproj.adapters.torch import Projector
    >>> model = torch.nn.Linear(2, 1, bias=False)
    >>> projector = Projector(model, gp.AGEM())
    >>> new, old = torch.tensor([[1.0, 0.0]]), torch.tensor([[-1.0, 1.0]])
    >>> projector.backward(model(new).sum(), [lambda: model(old).sum()])
    >>> model.weight.grad
    tensor([[0.5000, 0.5000]])
    """

    def __init__(
        self,
        model: nn.Module,
        method: gp.Method = gp.Decomposed(),  # noqa: B008 (frozen)
        layers: Layers = "module",
        *,
        backend: str = "auto",
        engine: str = "loop",
        running_statistics: bool = True,
        overflow: str = "raise",
        distributed: str | None = None,
        process_group: dist.ProcessGroup | None = None,
    ) -> None:
        checks.model(model)
        checks.method(method)
        checks.choices(backend=backend, engine=engine, overflow=overflow, distributed=distributed)
        self.model = model
        self.method = method
        self.running_statistics = running_statistics
        self.overflow = overflow
        self.last: gp.Solution | None = None
        self.engine = engines.choose(engine, model)
        self._wanted_engine = engine
        self._processes = Processes(distributed, process_group)
        self._recorder = Recorder(model, layers, backend, sharded=distributed == "sharded")

    @property
    def layers(self) -> dict[str, tuple[str, ...]]:
        """Layer name to the names of its parameters."""
        self._recorder.sync()
        return self._recorder.layers

    @property
    def backend(self) -> str:
        """The library that measures the inner products."""
        return self._recorder.gradients.backend

    @property
    def copied(self) -> int:
        """How many gradients of the last step had been put outside the buffer and were copied."""
        return self._recorder.copied

    def backward(self, new_loss: Loss, old_losses: Iterable[Loss] = ()) -> None:
        """Compute all gradients, project, and leave w in ``.grad``, whatever was there before.

        Parameters
        ----------
        new_loss : Tensor or callable
            Loss of the new task. A tensor runs backward first, which frees its graph; a callable
            is called last, after the old tasks, as the paper's training does.
        old_losses : iterable of tensors or callables
            Loss of each old task, consumed one by one: with callables or a generator only one
            graph is alive at any time. Of a list, methods that need only one combination of the
            old gradients keep that one alone: :class:`gradproj.AGEM` and
            :class:`gradproj.Decomposed` with ``rank=0`` their sum, whatever the number of tasks,
            and :class:`gradproj.SGEM` the drawn one; the others are called, not run backward.
        """
        checks.losses(old_losses)
        with self._recorder.step():
            self._loop(new_loss, old_losses, self._prepare(old_losses))

    def backward_batches(
        self,
        loss: Callable[..., Tensor],
        new: Sequence[Any],
        old: Sequence[Sequence[Any]] = (),
    ) -> None:
        """Do the same from batches, which lets the engine compute the old tasks' gradients.

        Parameters
        ----------
        loss : callable
            ``loss(model, *batch)`` returns a scalar tensor.
        new : sequence
            The new task's batch: tensors, and with the loop whatever else the loss takes.
        old : sequence of sequences
            One batch an old task.

        Examples
        --------
        >>> import torch
        >>> from gradproj.adapters.torch import Projector
        >>> model = torch.nn.Linear(2, 1, bias=False)
        >>> projector = Projector(model)
        >>> batches = [(torch.tensor([[1.0, 0.0]]),), (torch.tensor([[-1.0, 1.0]]),)]
        >>> projector.backward_batches(lambda model, x: model(x).sum(), batches[0], batches[1:])
        >>> model.weight.grad, projector.engine
        (tensor([[0.5000, 0.5000]]), 'loop')
        """
        old = list(old)
        checks.batch(new, "new")
        for task, batch in enumerate(old):
            checks.batch(batch, f"old[{task}]")
        self.engine = engines.choose(self._wanted_engine, self.model, old)
        new_loss = partial(loss, self.model, *new)
        with self._recorder.step():
            reduction = self._prepare(old)
            refusal = self._at_once(loss, old, reduction) if self.engine == "vmap" else None
            if self.engine == "vmap":
                passes.run(self._recorder, new_loss, 0)
                self._project(reduction)
            else:
                old_losses = [partial(loss, self.model, *batch) for batch in old]
                self._loop(new_loss, old_losses, reduction)
        if refusal is not None:  # and not an error of the loss itself: the loop has worked
            self._wanted_engine = "loop"
            warnings.warn(
                f'engine="auto": torch cannot vectorise this loss ({refusal}); the loop takes over',
                stacklevel=2,
            )

    def zero_grad(self, task: int | None = None) -> None:
        """Point every ``.grad`` at a zeroed row of the buffer, so that nothing is copied later.

        Parameters
        ----------
        task : int, optional
            The old task whose gradient comes next; the new task's unless given. Backward calls
            then accumulate, as after ``optimizer.zero_grad()``.
        """
        checks.task(task)
        self._recorder.sync()
        self._recorder.aim(0 if task is None else task + 1)

    def store(self, task: int) -> None:
        """Take what is in ``.grad`` as the gradient of old task number `task`, from 0 on.

        It is copied into the buffer unless :meth:`zero_grad` has put it there to begin with;
        ``.grad`` is None afterwards. What is stored stays until :meth:`project`; to start a step
        over, :meth:`reset`.
        """
        checks.task(task)
        self._recorder.sync()
        self._recorder.take(task + 1)

    def reset(self) -> None:
        """Drop what has been stored, for a step that is not to be finished."""
        self._recorder.forget()

    def project(self) -> None:
        """Take what is in ``.grad`` as the new gradient, and replace it by w.

        The stored gradients are used up.

        Examples
        --------
        Gradient accumulation over two micro-batches:

        >>> import torch
        >>> from gradproj.adapters.torch import Projector
        >>> model = torch.nn.Linear(2, 1, bias=False)
        >>> projector = Projector(model)
        >>> projector.zero_grad(task=0)
        >>> for micro in torch.tensor([[[-2.0, 0.0]], [[0.0, 2.0]]]):
        ...     (model(micro).sum() / 2).backward()
        >>> projector.store(0)
        >>> projector.zero_grad()
        >>> model(torch.tensor([[1.0, 0.0]])).sum().backward()
        >>> projector.project()
        >>> model.weight.grad
        tensor([[0.5000, 0.5000]])
        """
        self._recorder.sync()
        self._recorder.tasks()  # raises before anything is changed
        self._recorder.collect_new()
        self._project()

    def state_dict(self) -> dict[str, Any]:
        """Return all that a later step depends on: the draws of :class:`gradproj.SGEM`.

        ``torch.load(weights_only=True)`` reads it back.
        """
        return states.save(self.method, self.layers)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a :meth:`state_dict`."""
        states.load(state, self.method, self.layers)

    def _prepare(self, old: Iterable[Any]) -> SumRow | None:
        """Make room for the gradients of a step, as far as their number is known before."""
        reduction = self._reduction(old)
        tasks = len(old) if isinstance(old, Sized) else 0
        self._recorder.gradients.prepare(2 if reduction is not None else tasks + 1)
        return reduction

    def _reduction(self, old: object) -> SumRow | None:
        found = reductions.find(self.method, old)
        if found is None or len(found.tasks) == 1:
            return found
        # A sum that cancels is recognised by what it has been, of which each process has its own;
        # and a hook on what has been accumulated would take the sum for one task's gradient.
        hooked = any(p._post_accumulate_grad_hooks for p in self._recorder.gradients.parameters)
        return found if self._processes.mode is None and not hooked else None

    def _loop(self, new_loss: Loss, old_losses: Iterable[Loss], reduction: SumRow | None) -> None:
        moves = self.running_statistics
        passes.one_by_one(self._recorder, new_loss, old_losses, reduction, running_statistics=moves)
        self._project(reduction)

    def _at_once(
        self,
        loss: Callable[..., Tensor],
        old: Sequence[Sequence[Any]],
        reduction: SumRow | None,
    ) -> str | None:
        """Compute the old tasks' gradients by vmap; if that fails, leave it to the loop.

        Returns
        -------
        str or None
            Why it failed.
        """
        try:
            passes.old_at_once(self._recorder, loss, old, reduction)
        except RuntimeError as error:
            reason = str(error).partition("\n")[0].partition(". ")[0]
            if self._wanted_engine == "vmap":
                raise RuntimeError(
                    f'engine="vmap": torch cannot vectorise this loss ({reason}); use engine="loop"'
                ) from error
            self.engine = "loop"
            self._recorder.forget()
            return reason
        return None

    def _project(self, reduction: SumRow | None = None) -> None:
        tasks, touched = self._recorder.tasks(), self._recorder.touched()
        gradients = self._recorder.gradients
        touched = self._processes.share(gradients, tasks + 1, touched)
        self.last = self._solve(reduction or self.method, tasks)
        if self.last is not None and self._combine(self.last) and reduction is not None:
            self.last = reduction.among_all(self.last)
        gradients.finish(touched)
        self._recorder.forget()

    def _solve(self, method: gp.Method | SumRow, tasks: int) -> gp.Solution | None:
        """Return what the method makes of the inner products; None if the step is skipped."""
        gradients = self._recorder.gradients
        products = self._processes.total(gradients.measure(tasks), gradients)
        finite = products.finite & np.isfinite(products.square)
        if finite.all():
            return method.solve(products)
        layer = list(self._recorder.layers)[finite.argmin()]
        self._overflow(f"the gradients of layer {layer!r} hold NaN or infinity")
        return None

    def _combine(self, solution: gp.Solution) -> bool:
        """Leave w in the buffer; return False if it does not fit into its dtype."""
        gradients = self._recorder.gradients
        try:
            gradients.combine(solution)
            fits = gradients.fits()
        except gp.NotFiniteError:
            fits = False
        if not fits:
            self._overflow("the update does not fit into the gradients' dtype")
        return fits

    def _overflow(self, what: str) -> None:
        """Raise, or leave a step that whoever looks at `.grad` skips."""
        self.last = None
        if self.overflow == "raise":
            self._recorder.forget()
            raise gp.NotFiniteError(
                f'{what}; lower the learning rate, or with mixed precision use overflow="skip"'
            )
        self._recorder.gradients.poison()
