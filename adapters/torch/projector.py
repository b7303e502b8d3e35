"""`Projector`: the gradients of a model, projected in place of a plain backward call."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

import numpy as np
from torch import Tensor, nn
from torch import distributed as dist

import gradproj as gp
from gradproj.adapters.torch import engines, statistics
from gradproj.adapters.torch.distributed import Processes
from gradproj.adapters.torch.gradients import Gradients
from gradproj.adapters.torch.layers import Layers, group_parameters

Loss = Tensor | Callable[[], Tensor]

CHOICES = {
    "backend": ("auto", "numpy", "cupy", "torch"),
    "engine": ("auto", "loop", "vmap"),
    "overflow": ("raise", "skip"),
    "distributed": (None, "average", "sharded"),
}


class Projector:
    """Continual learning for a training loop: projects the new gradient against the old tasks'.

    For each layer it solves the method's problem, for example with :class:`gradproj.Decomposed`

        min ½‖w − g‖²  subject to  ḡᵀw ≥ 0  and  Bᵀw = 0,

    where g is the new task's gradient, ḡ the mean of the old tasks' and B a basis of their
    differences, and leaves w in ``.grad`` for any optimizer.

    Parameters
    ----------
    model : Module
        Parameters may be frozen, added or replaced between steps.
    method : gradproj.Method
        What is solved: ``gp.Decomposed()``, ``gp.GEM()``, ``gp.AGEM()``, ``gp.SGEM()``.
    layers : str, callable or list of groups of names
        ``"module"`` (weight and bias together), ``"tensor"``, ``"child"`` (top-level children),
        ``"all"`` (one layer), a function from a parameter's name to its layer, or the groups.
    backend : {"auto", "numpy", "cupy", "torch"}
        Library that measures the inner products on the buffer's own memory. "auto" takes NumPy on
        the CPU and, on CUDA, CuPy if it is installed and torch otherwise.
    engine : {"auto", "loop", "vmap"}
        How :meth:`backward_batches` computes the old tasks' gradients: one backward after the
        other, or all at once. "auto" takes vmap where it has been measured to be faster: networks
        of linear layers, activations and layer norms, with ten or more old tasks whose batches have
        one shape; and the loop otherwise.
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
    layers : dict
        Layer name to the names of its parameters.
    backend, engine : str
        What "auto" came to.
    last : gradproj.Solution or None
        Coefficients, rank, multiplier and `corrected` of the last step, one entry a layer; None
        when that step was skipped.
    copied : int
        How many gradients of the last step had been put outside the buffer and were copied.

    Notes
    -----
    A parameter that a loss does not use counts as a zero gradient there; one that no loss of the
    step uses gets ``.grad = None``, so that the optimizer passes over it as it always does.

    Momentum, weight decay and Adam's scaling act after the projection: then w satisfies the
    constraints, the step that the optimizer makes of it need not.

    Mixed precision: pass ``scaler.scale(loss)`` for every loss and use ``overflow="skip"``. The one
    factor that all gradients carry cancels in the coefficients, so ``scaler.step(optimizer)``
    unscales w as it would a plain gradient; GradScaler's powers of two make that exact.

    Clipping w is ``clip_grad_norm_`` after :meth:`backward`; to clip the gradients that go into it,
    or to accumulate them over micro-batches, use :meth:`zero_grad`, :meth:`store` and
    :meth:`project`.

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
        engine: str = "auto",
        running_statistics: bool = True,
        overflow: str = "raise",
        distributed: str | None = None,
        process_group: dist.ProcessGroup | None = None,
    ) -> None:
        if not isinstance(method, gp.Method):
            raise TypeError(
                f"method is a {type(method).__name__}; pass a method such as gp.Decomposed()"
            )
        given = {
            "backend": backend,
            "engine": engine,
            "overflow": overflow,
            "distributed": distributed,
        }
        for name, value in given.items():
            if value not in CHOICES[name]:
                known = ", ".join(repr(choice) for choice in CHOICES[name])
                raise ValueError(f"{name}={value!r} is not known; use {known}")
        self.model = model
        self.method = method
        self.running_statistics = running_statistics
        self.overflow = overflow
        self.last: gp.Solution | None = None
        self.copied = 0
        self._grouping = layers
        self._wanted_engine = engine
        self._wanted_backend = backend
        self._processes = Processes(distributed, process_group)
        self._signature: list[tuple[Any, ...]] | None = None
        self._stored: dict[int, list[bool]] = {}
        self._aimed: tuple[int, list[list[int]]] | None = None
        self._sync()
        self.engine = engines.choose(engine, model)

    # -- the whole step ---------------------------------------------------------------------------

    def backward(self, new_loss: Loss, old_losses: Iterable[Loss] = ()) -> None:
        """Compute all gradients, project, and leave w in ``.grad``.

        Takes the place of ``loss.backward()``; what was in ``.grad`` before is gone.

        Parameters
        ----------
        new_loss : Tensor or callable
            Loss of the new task. A tensor runs backward first, which frees its graph; a callable
            is called last, after the old tasks, as the paper's training does.
        old_losses : iterable of tensors or callables
            Loss of each old task, consumed one by one: with callables or a generator only one
            graph is alive at any time.
        """
        self._begin()
        if isinstance(new_loss, Tensor):
            self._run(new_loss, 0)
        with nullcontext() if self.running_statistics else statistics.kept(self.model):
            if not self.running_statistics:
                statistics.refuse_tensors(old_losses)
            for task, loss in enumerate(old_losses):
                self._run(loss, task + 1)
        if not isinstance(new_loss, Tensor):
            self._run(new_loss, 0)
        self._project()

    def backward_batches(
        self,
        loss: Callable[..., Tensor],
        new: Sequence[Tensor],
        old: Sequence[Sequence[Tensor]] = (),
    ) -> None:
        """Do the same from batches, which lets the engine compute the old tasks' gradients.

        Parameters
        ----------
        loss : callable
            ``loss(model, *batch)`` returns a scalar tensor.
        new : sequence of tensors
            The new task's batch.
        old : sequence of batches
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
        self.engine = engines.choose(self._wanted_engine, self.model, old)
        if self.engine == "loop":
            old_losses = (partial(loss, self.model, *batch) for batch in old)
            self.backward(partial(loss, self.model, *new), old_losses)
            return
        self._begin()
        try:
            gradients = engines.vectorised(self.model, loss, old)
        except RuntimeError as error:
            if self._wanted_engine == "vmap":
                raise RuntimeError(
                    'engine="vmap": torch cannot vectorise this loss; use engine="loop"'
                ) from error
            self._wanted_engine = "loop"
            self.backward_batches(loss, new, old)
            return
        self._gradients.reserve(len(old) + 1)
        flags = self._gradients.write(gradients)
        self._stored = {task + 1: flags for task in range(len(old))}
        self._run(partial(loss, self.model, *new), 0)
        self._project()

    # -- the pieces -------------------------------------------------------------------------------

    def zero_grad(self, task: int | None = None) -> None:
        """Point every ``.grad`` at a zeroed row of the buffer, so that nothing is copied later.

        Parameters
        ----------
        task : int, optional
            The old task whose gradient comes next; the new task's unless given. Backward calls
            then accumulate, as after ``optimizer.zero_grad()``.
        """
        self._check_task(task)
        self._sync()
        self._aim(0 if task is None else task + 1)

    def store(self, task: int) -> None:
        """Take what is in ``.grad`` as the gradient of old task number `task`, from 0 on.

        It is copied into the buffer unless :meth:`zero_grad` has put it there to begin with.
        """
        self._check_task(task)
        self._sync()
        self._collect(task + 1)

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
        self._sync()
        if 0 not in self._stored:
            self._collect(0)
        self._project()

    # -- state ------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return all that a later step depends on: the draws of :class:`gradproj.SGEM`.

        The buffer holds nothing from one step to the next. ``torch.load(weights_only=True)`` reads
        it back.
        """
        generator = getattr(self.method, "generator", None)
        return {
            "layers": {name: list(members) for name, members in self.layers.items()},
            "generator": None if generator is None else generator.bit_generator.state,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a :meth:`state_dict`.

        Raises
        ------
        ValueError
            If the state is of another method or of other layers.
        """
        self._sync()
        generator = getattr(self.method, "generator", None)
        if (generator is None) != (state["generator"] is None):
            raise ValueError(
                f"state is of another method than {self.method!r}; build the projector as it was"
            )
        layers = {name: list(members) for name, members in self.layers.items()}
        if state["layers"] != layers:
            raise ValueError(
                f"state has layers {state['layers']} and the projector {layers}; build the model "
                "and the projector as they were"
            )
        if generator is not None:
            generator.bit_generator.state = state["generator"]

    # -- inside -----------------------------------------------------------------------------------

    def _project(self) -> None:
        tasks = len(self._stored) - 1
        absent = [task for task in range(tasks) if task + 1 not in self._stored]
        if absent:
            raise ValueError(
                f"task={absent[0]} has not been stored but a later one has; store(0) to "
                f"store({tasks - 1}) come before project()"
            )
        flags = [any(column) for column in zip(*self._stored.values(), strict=True)]
        flags = self._processes.share(self._gradients, tasks + 1, flags)
        self.last = self._solve(tasks)
        if self.last is not None:
            self._gradients.combine(self.last.coefficients)
        self._gradients.finish(flags)
        self._forget()

    def _solve(self, tasks: int) -> gp.Solution | None:
        """Return what the method makes of the inner products; None if the step is skipped."""
        C, h = self._processes.total(*self._gradients.measure(tasks), self._gradients)
        if np.isfinite(C.sum() + h.sum()):
            tolerance = self._gradients.tolerance
            return self.method.solve(C[:, :tasks, :tasks], h[:, :tasks], tolerance=tolerance)
        if self.overflow == "raise":
            self._forget()
            finite = np.isfinite(C).all((1, 2)) & np.isfinite(h).all(1)
            name = list(self.layers)[finite.argmin()]
            raise ValueError(
                f"the gradients of layer {name!r} hold NaN or infinity; lower the learning rate, "
                'or with mixed precision use overflow="skip"'
            )
        self._gradients.poison()
        return None

    def _begin(self) -> None:
        self._forget()
        self.copied = 0
        self._sync()

    def _forget(self) -> None:
        self._stored = {}
        self._aimed = None

    def _run(self, loss: Loss, row: int) -> None:
        value = loss if isinstance(loss, Tensor) else loss()
        if not isinstance(value, Tensor):
            raise TypeError(
                f"{'new_loss' if row == 0 else f'old_losses[{row - 1}]'} is a "
                f"{type(value).__name__}; pass a scalar tensor or a function that returns one"
            )
        self._aim(row)
        value.backward()  # type: ignore[no-untyped-call]
        self._collect(row)

    def _aim(self, row: int) -> None:
        self._gradients.reserve(row + 1)
        self._aimed = row, self._gradients.aim(row)

    def _collect(self, row: int) -> None:
        self._gradients.reserve(row + 1)
        before = self._aimed[1] if self._aimed and self._aimed[0] == row else None
        self._stored[row], copied = self._gradients.collect(row, before)
        self.copied += copied

    @staticmethod
    def _check_task(task: int | None) -> None:
        if task is not None and task < 0:
            raise ValueError(f"task={task}; old tasks are numbered from 0 on")

    def _sync(self) -> None:
        """Lay the buffer out anew if the model's parameters are no longer what they were."""
        core = unwrapped(self.model)
        parameters = trainable(core)
        signature = [(p, p.dtype, p.device, p.shape, p.stride()) for p in parameters]
        known = self._signature
        if (
            known is not None
            and len(known) == len(signature)
            and all(a[0] is b[0] and a[1:] == b[1:] for a, b in zip(known, signature, strict=True))
        ):
            return
        if self._stored:
            self._forget()
            raise RuntimeError(
                "the model's parameters changed after store(); store the old tasks' gradients again"
            )
        if not parameters:
            raise ValueError("model has no parameter that requires a gradient")
        engines.refuse_sparse(core)
        self.layers = group_parameters(core, self._grouping)
        named = dict(core.named_parameters())
        self._gradients = Gradients(
            [[named[name] for name in members] for members in self.layers.values()],
            self._wanted_backend,
        )
        self.backend = self._gradients.backend
        self._signature = signature
        self._aimed = None


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
    """Return the network inside ``DistributedDataParallel``, whose names people know."""
    if isinstance(model, nn.parallel.DistributedDataParallel):
        inner: nn.Module = model.module
        return inner
    return model
