"""`Projector`: projected gradients in place of a plain backward call."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sized

from torch import Tensor, nn
from torch import distributed as dist

import gradproj as gp
from gradproj.adapters.torch import _arguments
from gradproj.adapters.torch._arguments import Backend, Distributed, EngineName, Overflow
from gradproj.adapters.torch._eager import eager
from gradproj.adapters.torch._engines import LOOP, Batch, Evaluate, VectorizeError, choose
from gradproj.adapters.torch._stored_steps import StoredSteps
from gradproj.adapters.torch.layers import Layers

Loss = Tensor | Callable[[], Tensor]


class Projector(StoredSteps):
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

    The default method was chosen by measurement, and it is not the best one everywhere. Its replay
    term, the mean of the old gradients, does most of the work. The page "Which method when" of the
    documentation has the table.

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
        _arguments.choices(engine=engine)
        super().__init__(
            model,
            method,
            layers,
            backend=backend,
            running_statistics=running_statistics,
            overflow=overflow,
            distributed=distributed,
            process_group=process_group,
        )
        self._wanted_engine: EngineName = engine
        self.engine = choose(engine, model).name

    def __repr__(self) -> str:
        rows = self._steps.rows()
        return (
            f"{type(self).__name__}({self.method!r}, layers={len(rows.layout.names)}, "
            f"engine={self.engine!r}, backend={rows.backend!r})"
        )

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
