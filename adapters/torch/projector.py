"""`Projector`: projected gradients in place of a plain backward call."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Sized
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn
from torch import distributed as dist

import gradproj as gp
from gradproj.adapters.torch import _arguments
from gradproj.adapters.torch._arguments import Backend, Distributed, EngineName, Overflow
from gradproj.adapters.torch._eager import eager
from gradproj.adapters.torch._engines import LOOP, Batch, Evaluate, VectorizeError, choose
from gradproj.adapters.torch._processes import Processes
from gradproj.adapters.torch._solver import Solver
from gradproj.adapters.torch._step import Step
from gradproj.adapters.torch._steps import Steps
from gradproj.adapters.torch.layers import Layers

Loss = Tensor | Callable[[], Tensor]


class Projector:
    """Continual learning for a training loop: projects the new gradient against the old tasks'.

    For each layer it solves the method's problem, for example with :class:`gradproj.Decomposed`

        min ½‖w − g‖²  subject to  ḡᵀw ≥ 0  and  B w = 0,

    where g is the new task's gradient, ḡ is the mean of the old tasks' gradients and the rows of B
    are a basis of their differences. The update w is added to ``.grad``, for any optimizer.

    Parameters
    ----------
    model : Module
        The model that is trained. Parameters may be frozen, added or replaced between steps. A
        parameter that the losses use but the model does not have gets the gradients of all losses,
        old and new.
    method : gradproj.Method
        The problem that is solved: :class:`gradproj.Decomposed`, :class:`gradproj.GEM`,
        :class:`gradproj.AGEM`, :class:`gradproj.SGEM` or a user-defined method. The default
        projects out five task-specific directions per layer and adds the mean of the old gradients
        (``strength=1.0``), so that the old tasks are also trained. See the notes for its effect.
    layers : str, callable or list of groups of names
        ``"module"`` (weight and bias of a submodule together), ``"tensor"``, ``"child"`` (top-level
        children), ``"all"`` (one layer), a function from a parameter's name to its layer, or the
        groups.
    backend : {"auto", "numpy", "cupy", "torch"}
        Library that measures the inner products on the buffer's own memory. "auto" uses NumPy on
        the CPU. On CUDA it uses CuPy if that is installed, and torch otherwise.
    engine : {"loop", "vmap", "auto"}
        How :meth:`backward_batches` computes the old tasks' gradients: one backward call after the
        other, or all at once by ``torch.func.vmap``, which calls the loss once for all old tasks.
        The loss must then be a pure function: side effects inside vmap are not visible outside.
        "auto" uses vmap where it has been measured to be faster, and the loop otherwise. These are
        networks of linear layers, activations and layer norms, with ten or more old tasks whose
        batches have one shape, unless most parameters are in wide layers. The loop stores the
        gradients of wide linear and embedding layers in factored form where that is cheaper, so
        that updates may differ in their last digits from those of :meth:`project`.
    running_statistics : bool
        Whether passes over old batches move the running statistics of batch norm and the observers
        of quantization-aware training. Each pass is normalized by its own batch either way.
    overflow : {"raise", "skip"}
        What a NaN or infinite gradient does: raise an error that names the layer, or (for mixed
        precision) fill ``.grad`` with NaN, so that ``GradScaler.step`` skips the step.
    distributed : {None, "average", "sharded"}
        None: one process, or a ``DistributedDataParallel`` model, which averages by itself.
        "average": every process computes its share of each loss, and the gradients are averaged
        before they are projected. "sharded": every process holds a part of each parameter, and
        only the inner products are summed over the processes.
    process_group : ProcessGroup, optional
        The processes that take part; all of them unless given.

    Attributes
    ----------
    engine : str
        The engine of the last step, or the one that "auto" expects to use.
    last : gradproj.Solution or None
        What the last step did, with one entry per layer in the order of ``layers``. None before
        the first step and after a skipped one. ``last.corrected`` says which layers conflicted with
        the old tasks, ``last.rank`` how many directions were projected out, ``last.multiplier`` how
        strong the correction was, and ``last.coefficients`` (layers, tasks) how much of each old
        gradient the update contains. See the example below.

    Notes
    -----
    A parameter that a loss does not use counts as a zero gradient there. A parameter for which no
    backward call of the step has a gradient keeps its ``.grad``. ``optimizer.zero_grad()`` sets it
    to None, so that the optimizer skips the parameter as usual. If a step raises an error,
    ``.grad`` is what it was before.

    The default method was chosen on a stream of ten permutations of scikit-learn's digits, with
    seeds 10 to 14. The table is from seeds 20 to 24, which were not used for the choice: mean
    accuracy in percent with plain SGD, one epoch, batches of 10 and 50 stored samples per task
    (``gradproj run --benchmark permuted-digits --set memory.per_task=50``, and the options of each
    row).

    ==========================================  =======  ======  ======
    learning rate                                  0.03     0.1     0.3
    ==========================================  =======  ======  ======
    fine-tuning                                    33.3    35.5    27.4
    ``gp.Decomposed()``, the paper's equations     45.8    36.2    28.9
    ``gp.GEM()``                                   58.0    66.7    67.8
    the default                                    70.2    78.6    76.1
    its replay term alone                          69.0    80.2    76.0
    the sum of the gradients, strength 0.5         74.4    80.7    76.6
    ==========================================  =======  ======  ======

    The default is not the best method in this table. The sum is better at 0.03 and 0.1 (by 4.2 and
    2.1 points, on each of the five seeds) and equal within the spread at 0.3. The replay term does
    most of the work: without the projection, accuracy is 1.3 points lower at 0.03, 1.6 points
    higher at 0.1 (both on each seed) and equal at 0.3. The mean is the default because the step of
    the sum grows with the number of tasks: on 20 permutations of Fashion-MNIST the sum collapses at
    a learning rate of 0.1.

    The effect of momentum, mixed precision and clipping is described in
    :mod:`gradproj.adapters.torch`. A copied or pickled projector takes its model along, but no
    gradients: copy it between steps. One projector must not be used from two threads at once.

    Examples
    --------
    >>> import torch
    >>> import gradproj as gp
    >>> from gradproj.adapters.torch import Projector
    >>> model = torch.nn.Linear(2, 1, bias=False)
    >>> projector = Projector(model, gp.AGEM())
    >>> new, old = torch.tensor([[1.0, 0.0]]), torch.tensor([[-1.0, 1.0]])
    >>> loss = projector.backward(model(new).sum(), [lambda: model(old).sum()])
    >>> model.weight.grad
    tensor([[0.5000, 0.5000]])

    For a progress bar or a log, the share of layers that were corrected:

    >>> float(projector.last.corrected.mean())
    1.0
    >>> dict(zip(projector.layers, projector.last.coefficients.tolist()))
    {'weight': [0.5]}
    >>> projector
    Projector(AGEM(strength=0.0, replay='mean', ridge=0.0), layers=1, engine='loop',
              backend='numpy')
    """

    def __init__(
        self,
        model: nn.Module,
        method: gp.Method = gp.Decomposed(rank=5, strength=1.0),  # noqa: B008 (frozen)
        layers: Layers = "module",
        *,
        backend: Backend = "auto",
        engine: EngineName = "loop",
        running_statistics: bool = True,
        overflow: Overflow = "raise",
        distributed: Distributed | None = None,
        process_group: dist.ProcessGroup | None = None,
    ) -> None:
        _arguments.model(model)
        _arguments.method(method)
        _arguments.choices(
            backend=backend, engine=engine, overflow=overflow, distributed=distributed
        )
        self.model = model
        self.running_statistics = running_statistics
        self.overflow: Overflow = overflow
        self.last: gp.Solution | None = None
        self._wanted_engine: EngineName = engine
        solver = Solver(method, Processes(distributed, process_group))
        self._steps = Steps(model, layers, backend, solver)
        self._steps.rows()  # raises for layers that do not fit the model
        self.engine = choose(engine, model).name

    def __repr__(self) -> str:
        rows = self._steps.rows()
        return (
            f"{type(self).__name__}({self.method!r}, layers={len(rows.layout.names)}, "
            f"engine={self.engine!r}, backend={rows.backend!r})"
        )

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
    def backward(
        self, new_loss: Loss, old_losses: Iterable[Loss] = (), *, retain_graph: bool = False
    ) -> Tensor:
        """Compute all gradients, project, and add the update to ``.grad``.

        As after ``loss.backward()``, call ``optimizer.zero_grad()`` before the next step, unless
        updates are to be accumulated.

        Parameters
        ----------
        new_loss : Tensor or callable
            Loss of the new task. A tensor runs backward first, which frees its graph; a callable
            is called last, after the old tasks, as in the paper's training.
        old_losses : iterable of tensors or callables
            Loss of each old task, consumed one by one. With callables or a generator only one graph
            is alive at any time. From a list, methods that need only one combination of the old
            gradients keep that combination alone. These are :class:`gradproj.AGEM` and
            :class:`gradproj.Decomposed` with ``rank=0`` (a sum), and :class:`gradproj.SGEM` (the
            drawn task; the other losses are called, but not run backward).
        retain_graph : bool
            Keep the graph of each loss, for losses given as tensors that share a part of it.

        Returns
        -------
        Tensor
            The new task's loss, detached.
        """
        _arguments.losses(old_losses)
        evaluate = Evaluate(self.model, None, self.running_statistics, retain_graph)
        tasks = len(old_losses) if isinstance(old_losses, Sized) else None
        with self._step(tasks) as step:
            value = LOOP.run(step, evaluate, new_loss, old_losses)
            self.last = step.finish(self.overflow)
        return value

    @eager
    def backward_batches(
        self, loss: Callable[..., Tensor], new: Batch, old: Iterable[Batch] = ()
    ) -> Tensor:
        """Do the same from batches, so that the engine can compute the old tasks' gradients.

        Parameters
        ----------
        loss : callable
            ``loss(model, *batch)`` returns a scalar tensor, or ``loss(model, **batch)`` for batches
            that are dicts.
        new : sequence or dict
            The new task's batch: tensors, and with the loop any other arguments of the loss.
        old : iterable of sequences or dicts
            One batch per old task. With the loop they may differ in size.

        Returns
        -------
        Tensor
            The new task's loss, detached.

        Examples
        --------
        >>> import torch
        >>> from gradproj.adapters.torch import Projector
        >>> model = torch.nn.Linear(2, 1, bias=False)
        >>> projector = Projector(model, gp.GEM())
        >>> batches = [{"x": torch.tensor([[1.0, 0.0]])}, {"x": torch.tensor([[-1.0, 1.0]])}]
        >>> loss = projector.backward_batches(
        ...     lambda model, x: model(x).sum(), batches[0], batches[1:]
        ... )
        >>> model.weight.grad, projector.engine
        (tensor([[0.5000, 0.5000]]), 'loop')
        """
        _arguments.function(loss)
        _arguments.batch(new, "new")
        old = _arguments.batches(old)
        engine, refusal = choose(self._wanted_engine, self.model, old), None
        self.engine = engine.name
        evaluate = Evaluate(self.model, loss, self.running_statistics)
        with self._step(len(old)) as step:
            try:
                value = engine.run(step, evaluate, new, old)
            except VectorizeError as error:
                refusal = f"torch cannot vectorise this loss ({error})"
                if self._wanted_engine == "vmap":
                    raise RuntimeError(f'engine="vmap": {refusal}; use engine="loop"') from error
                step.reset()
                self.engine = LOOP.name
                value = LOOP.run(step, evaluate, new, old)
            self.last = step.finish(self.overflow)
        if refusal is not None:  # and not an error of the loss itself: the loop has worked
            self._wanted_engine = "loop"
            warnings.warn(f'engine="auto": {refusal}; the loop is used from now on', stacklevel=3)
        return value

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
