"""Gradients of wide linear and embedding layers, kept as pairs of inputs and output gradients.

The gradient of a linear layer over one batch is DᵀA, with one row per sample (or token) in the
inputs A and in the output gradients D. For a wide layer and small batches the pair (A, D) is much
smaller than the gradient, and everything that a method needs can be computed from pairs:

- The inner product of the gradients of tasks i and j is the sum of the entries of
  (Aᵢ Aⱼᵀ) ∘ (Dᵢ Dⱼᵀ), where ∘ is the elementwise product.
- The update s·g + Σ cᵢ gᵢ is one product (r·D)ᵀA over the rows of all tasks. The weight r of a row
  is the coefficient of its task.

An embedding layer is the same with one-hot inputs, so A is stored as a vector of indices.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from types import MethodType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

import gradproj as gp

# Accuracy of the inner products and the largest error that is accepted for them, by the dtype of
# the gradients. The inner products are formed in float64, but the update of a float32 layer is
# summed in float32: its tolerance is the one of `gp.measure_layers`.
_TOLERANCE_64, _ACCEPTED_64 = 1e-13, 1e-9
_TOLERANCE_32, _ACCEPTED_32 = 5e-6, 1e-3
# Rounding error of a Gram matrix in float64, relative to the squared sum of |a||d| over the rows.
_ROUNDING = 4 * float(np.finfo(np.float64).eps)
# `gp.measure_layers` measures layers of up to this size in float64. Keep them out of here, so that
# they have the same tolerance in both forms. They would not gain from pairs either.
_SMALL = 1 << 10
# Rows per block of a Gram matrix, and numbers per block of embeddings: 8 MB in float64.
_ROWS, _NUMBERS = 1 << 10, 1 << 20
# A gradient above this size no longer fits into a shared cache together with its neighbors.
_CACHE_BYTES = 16 << 20
# Steps without an attempt after one in which no layer was worthwhile. An attempt costs 0.5 ms in a
# small network, where a step takes 12 ms.
_PAUSE = 15
# Cost of the function calls for a factored layer, in operations. Measured in MLPs of width 100 to
# 400 with batches of 8, where pairs gain from about 100,000 parameters per layer.
_CALLS, _CALLS_PER_TASK = 5_000_000, 1_500_000
# Wrappers that copy modules or that need every gradient to reach its parameter.
_WRAPPERS = {"DistributedDataParallel", "DataParallel", "FullyShardedDataParallel"}

Task = int | None  # None is the new task


def worthwhile(parameter: Tensor, rows: int, tasks: int, *, embedding: bool = False) -> bool:
    """Estimate whether pairs are cheaper than gradients, from operation counts.

    Parameters
    ----------
    parameter : Tensor
        The weight, (out, in) or (entries, width).
    rows : int
        Number of rows (samples or tokens) of all tasks together, the new one included.
    tasks : int
        Number of old tasks.
    embedding : bool
        Whether it is the weight of an embedding layer.

    Examples
    --------
    >>> weight = torch.empty(2000, 2000)
    >>> worthwhile(weight, 20 * 21, tasks=20), worthwhile(weight, 100 * 21, tasks=20)
    (True, False)
    """
    size, count = parameter.numel(), tasks + 1
    if size <= _SMALL or not tasks:
        return False
    # Measured on one core of a CPU: set to zero, copy and combine gradients, per number.
    handling = 20 if size * parameter.element_size() > _CACHE_BYTES else 3
    formed = (1.5 * count + handling) * count * size - _CALLS - _CALLS_PER_TASK * count
    if embedding:
        return rows * parameter.shape[1] * (1.5 * count + 20) < formed
    # Both forms spend another rows · size operations: on the gradients, or on the update.
    return 1.3 * rows**2 * sum(parameter.shape) < formed


def is_wide(model: nn.Module, rows: int, tasks: int) -> bool:
    """Return whether most parameters of a model would be factored, for batches of `rows` rows."""
    total = sum(p.numel() for p in model.parameters() if p.requires_grad)
    wide = {
        module.weight: module.weight.numel()
        for module in _supported(model)
        if module.weight.requires_grad
        and worthwhile(
            module.weight,
            rows * (tasks + 1),
            tasks,
            embedding=isinstance(module, nn.Embedding),
        )
    }
    return 2 * sum(wide.values()) > total


class Pair(NamedTuple):
    """Inputs and output gradients of one call of a layer, one row per sample."""

    inputs: Tensor  # (rows, in), or the indices (rows,) of an embedding
    outputs: Tensor  # (rows, out)
    version: int  # of the inputs, to notice changes in place


@dataclass
class _Record:
    """Gradients of one parameter in one step."""

    parameter: nn.Parameter
    embedding: bool
    pairs: dict[Task, list[Pair]] = field(default_factory=dict)
    # Parts that reached `.grad`, because the parameter was also used outside of its module.
    rest: dict[Task, Tensor] = field(default_factory=dict)
    # All pairs as one, with the position of each row's task; or all gradients, (T + 1, size).
    joined: tuple[Tensor, Tensor, Tensor] | None = None
    formed: Tensor | None = None


class Factored:
    """Records pairs in place of the weight gradients of one model, for one step at a time.

    It replaces `forward` of modules whose type is exactly `nn.Linear` or `nn.Embedding` while a
    step runs. All other gradients, those of biases included, reach `.grad` as usual.

    A parameter stays in its usual form if it has hooks, if it is sharded or replicated by a wrapper
    from `torch.distributed`, or if its module is compiled, has a `forward` of its own, or is an
    embedding with `sparse`, `max_norm` or `scale_grad_by_freq`.

    Parameters
    ----------
    model : Module
        Make a new object when modules or parameters of the model are replaced.

    Examples
    --------
    >>> model = nn.Linear(2000, 1000, bias=False)
    >>> batches = [torch.randn(4, 2000) for _ in range(3)]
    >>> factored = Factored(model)
    >>> with factored.step(tasks=2):
    ...     for task, batch in zip((0, 1, None), batches):
    ...         loss = model(batch).square().mean()
    ...         chosen = factored.choose()
    ...         with factored.recording(task):
    ...             loss.backward()
    >>> chosen == {model.weight}, model.weight.grad
    (True, None)
    >>> solution = gp.Decomposed().solve(factored.products(model.weight))
    >>> update = factored.combine(model.weight, solution.coefficients, solution.scale)
    >>> update.shape
    torch.Size([1000, 2000])
    >>> factored.clear()
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self._calls: list[_Call] | None = None
        # Parameters with several uses outside of their modules: pairs do not save anything there.
        self._shared: set[nn.Parameter] = set()
        self._rows: dict[nn.Parameter, int] = {}
        self._tasks = 0
        self._records: dict[nn.Parameter, _Record] = {}
        self._installed: list[_Call] = []
        self._decided = False
        self._pause = 0
        self._task: Task = None
        self._open = False

    def __reduce__(self) -> tuple[Any, ...]:
        return Factored, (self.model,)  # a copy belongs to a copy of the model

    def promising(self, tasks: int) -> bool:
        """Return whether to attempt a step with this number of old tasks.

        After a step in which no layer was worthwhile, several steps are not attempted.
        """
        if self._pause and tasks == self._tasks:
            self._pause -= 1
            return False
        return tasks > 0

    @contextmanager
    def step(self, tasks: int) -> Iterator[None]:
        """Replace `forward` of the supported modules while the passes of one step run.

        Parameters
        ----------
        tasks : int
            Number of old tasks.
        """
        self.clear()
        self._tasks, self._decided = tasks, False
        try:
            for call in self._candidates():
                call.install()
                self._installed.append(call)
            yield
        except BaseException:
            self.clear()
            raise
        finally:
            self._restore(set())

    def choose(self) -> frozenset[nn.Parameter]:
        """Choose the parameters whose gradients stay factored in this step.

        Call it after the first forward pass and before the first backward pass. The forward pass
        tells how many rows the batches have; other batches are expected to be similar. If the
        first loss was computed before the step began, the row counts of the last step are used.
        Later calls in the same step return the same parameters.
        """
        if not self._decided:
            self._decided = True
            self._count()
            for call in self._installed:
                p = call.parameter
                rows = self._rows.get(p, 0) * (self._tasks + 1)
                if rows and worthwhile(p, rows, self._tasks, embedding=call.embedding):
                    self._records.setdefault(p, _Record(p, call.embedding))
            unknown = self._installed and not self._rows
            self._pause = 0 if self._records or unknown else _PAUSE
        return frozenset(self._records)

    @contextmanager
    def recording(self, task: Task) -> Iterator[None]:
        """Record the pairs of one backward pass as the gradient of `task`; None is the new task.

        `.grad` of the chosen parameters is None before and after the pass.
        """
        self.choose()
        counted = self._count()
        for p in self._records:
            p.grad = None
        self._task, self._open = task, True
        try:
            yield
        finally:
            self._open = False
        for call in self._installed:
            call.rows = 0
        for record in self._records.values():
            found, record.parameter.grad = record.parameter.grad, None
            if found is not None:
                known = record.rest.get(task)
                record.rest[task] = found.detach() if known is None else known + found.detach()
        # Only now: a checkpointed forward pass is repeated during backward, and must be the same.
        if counted:
            self._restore(set(self._records))

    def used(self, parameter: nn.Parameter) -> bool:
        """Return whether any backward pass of the step had a gradient for a chosen parameter."""
        record = self._records[parameter]
        found = (record.pairs, record.rest, record.joined is not None, record.formed is not None)
        return any(map(bool, found))

    def products(self, parameter: nn.Parameter) -> gp.Products:
        """Compute the inner products of a chosen parameter's gradients in float64.

        The products of a layer are the sum over its parameters, factored or not.
        """
        record, T = self._records[parameter], self._tasks
        with torch.no_grad(), _full_precision(parameter):
            self._join(record)
            if record.formed is None:
                Q, tolerance = self._gram(record)
            if record.formed is not None:  # `_gram` may have done it
                return _measured(record.formed)
            if record.rest:
                self._add_rest(record, Q)
        found = Q.cpu().numpy()
        return gp.Products(found[:T, :T], found[:T, T], found[T, T], np.asarray(tolerance))

    def combine(
        self,
        parameter: nn.Parameter,
        coefficients: Sequence[float] | np.ndarray[Any, Any],
        scale: float | np.ndarray[Any, Any] = 1.0,
        *,
        out: Tensor | None = None,
    ) -> Tensor:
        """Return the update s·g + Σ cᵢ gᵢ of a chosen parameter, in its shape and dtype.

        Parameters
        ----------
        parameter : Parameter
            One of the chosen parameters.
        coefficients : array (T,)
            One coefficient per old task.
        scale : float
            Coefficient of the new gradient.
        out : Tensor, optional
            Dense tensor of the parameter's shape and dtype that receives the update.
        """
        record = self._records[parameter]
        weights = torch.tensor([*coefficients, float(scale)], dtype=torch.float64)
        if out is None:
            out = torch.empty_like(parameter, requires_grad=False)
        with torch.no_grad(), _full_precision(parameter):
            self._join(record)
            if record.formed is not None:
                total = weights.to(record.formed) @ record.formed
                return out.copy_(total.view(parameter.shape))
            if record.joined is None:
                out.zero_()
            else:
                inputs, outputs, owner = record.joined
                # Very large coefficients, of very short gradients, do not fit into float32.
                large = bool(weights.abs().max() > 1e18)
                wide = torch.float64 if large else torch.float32
                dtype = torch.promote_types(parameter.dtype, wide)
                factors = weights.to(outputs.device, dtype)[owner]
                if not weights.all():  # GEM uses few of the old tasks, or none
                    used = factors != 0
                    inputs, outputs, factors = inputs[used], outputs[used], factors[used]
                _form(inputs, outputs * factors[:, None], out, embedding=record.embedding)
            for task, rest in record.rest.items():
                out.add_(rest, alpha=float(weights[self._position(task)]))
        return out

    def gradient(self, parameter: nn.Parameter, task: Task) -> Tensor:
        """Form the gradient of one task for a chosen parameter, in its shape and dtype."""
        coefficients = np.zeros(self._tasks + 1)
        coefficients[self._position(task)] = 1.0
        return self.combine(parameter, coefficients[:-1], coefficients[-1])

    def clear(self) -> None:
        """Drop all pairs, at the end of a step."""
        self._records = {}

    def _wants(self, parameter: nn.Parameter) -> bool:
        """Return whether pairs of the parameter are recorded now instead of its gradient."""
        # With create_graph, the gradient is an intermediate result of a loss.
        return self._open and parameter in self._records and not torch.is_grad_enabled()

    def _record(self, parameter: nn.Parameter, inputs: Tensor, outputs: Tensor) -> None:
        pair = Pair(inputs, outputs, inputs._version)
        self._records[parameter].pairs.setdefault(self._task, []).append(pair)

    def _count(self) -> bool:
        """Note how many rows the last forward pass had; return whether rows are known."""
        counts: dict[nn.Parameter, int] = {}
        for call in self._installed:
            counts[call.parameter] = counts.get(call.parameter, 0) + call.rows
        counts = {p: rows for p, rows in counts.items() if rows}
        self._rows.update(counts)
        return bool(counts)

    def _candidates(self) -> list[_Call]:
        """Return the calls of all parameters that may be factored in this step."""
        count = self._tasks + 1
        kinds: dict[nn.Parameter, bool] = {}
        refused = set(self._shared)
        if self._calls is None:
            self._calls = [_Call(self, module) for module in _supported(self.model)]
        for call in self._calls:
            # A weight that is tied between a linear and an embedding layer has two kinds of pairs.
            if kinds.setdefault(call.parameter, call.embedding) != call.embedding:
                refused.add(call.parameter)
        return [
            call
            for call in self._calls
            if call.parameter not in refused
            and call.available()
            # One row per task is the least that there can be.
            and worthwhile(call.parameter, count, self._tasks, embedding=call.embedding)
        ]

    def _restore(self, kept: set[nn.Parameter]) -> None:
        """Restore `forward` of all modules except those of the parameters in `kept`."""
        for call in self._installed:
            if call.parameter not in kept:
                call.remove()
        self._installed = [call for call in self._installed if call.parameter in kept]

    def _position(self, task: Task) -> int:
        return self._tasks if task is None else task

    def _join(self, record: _Record) -> None:
        """Concatenate the pairs of all tasks, or form the gradients if that is cheaper."""
        if record.joined is None and record.pairs:
            inputs, outputs, owner = [], [], []
            for task, pairs in record.pairs.items():
                for pair in pairs:
                    _check_unchanged(pair, record.parameter)
                    inputs.append(pair.inputs)
                    outputs.append(pair.outputs)
                    owner += [self._position(task)] * len(pair.outputs)
            positions = torch.tensor(owner, dtype=torch.int64, device=outputs[0].device)
            record.joined = torch.cat(inputs), torch.cat(outputs), positions
            record.pairs = {}
        if len(record.rest) > 1:
            self._shared.add(record.parameter)
            self._form_all(record)

    def _gram(self, record: _Record) -> tuple[Tensor, float]:
        """Return the inner products (T + 1, T + 1) of the pairs and their accuracy.

        If float64 gradients cancel so far that their inner products would not be accurate enough,
        form them. In float32 only rounding is left of such gradients: they count as zero.
        """
        p, count = record.parameter, self._tasks + 1
        exact = p.dtype == torch.float64
        tolerance = _TOLERANCE_64 if exact else _TOLERANCE_32
        if record.joined is None:
            return torch.zeros((count, count), dtype=torch.float64), tolerance
        if record.embedding:
            return _embedding_gram(*record.joined, count, len(p)), tolerance
        Q, error = _linear_gram(*record.joined, count)
        # NaN is not lost: the caller reports it.
        lost = error > (_ACCEPTED_64 if exact else _ACCEPTED_32) * Q.diagonal()
        if bool(lost.any()):
            if exact:
                self._form_all(record)
            Q[lost], Q[:, lost], error[lost] = 0.0, 0.0, 0.0
        relative = (error / Q.diagonal()).nan_to_num(nan=0.0, posinf=0.0)
        return Q, max(tolerance, float(relative.max()))

    def _form_all(self, record: _Record) -> None:
        """Form the gradients of all tasks."""
        p = record.parameter
        dtype = torch.promote_types(p.dtype, torch.float32)
        record.formed = p.new_zeros((self._tasks + 1, p.numel()), dtype=dtype)
        rows = [row.view(p.shape) for row in record.formed]
        if record.joined is not None:
            inputs, outputs, owner = record.joined
            for position in set(owner.tolist()):
                mine = owner == position
                _form(inputs[mine], outputs[mine], rows[position], embedding=record.embedding)
        for task, rest in record.rest.items():
            rows[self._position(task)] += rest
        record.joined, record.rest = None, {}

    def _add_rest(self, record: _Record, Q: Tensor) -> None:
        """Add the products of the one task that has a gradient beside its pairs."""
        ((task, rest),) = record.rest.items()
        k = self._position(task)
        if record.joined is not None:
            inputs, outputs, owner = record.joined
            wide = torch.promote_types(rest.dtype, torch.float32)
            rest = rest.to(wide)
            facing = rest[inputs] if record.embedding else inputs.to(wide) @ rest.T
            dots = (facing.double() * outputs.double()).sum(1)
            cross = dots.new_zeros(len(Q)).index_add_(0, owner, dots).to(Q.device)
            Q[k] += cross
            Q[:, k] += cross
        Q[k, k] += _square(rest)


class _Call:
    """A replacement for `forward` of one module. It stays the same object in all steps."""

    def __init__(self, owner: Factored, module: nn.Linear | nn.Embedding) -> None:
        self.owner = owner
        self.module = module
        parameter = module.weight
        assert isinstance(parameter, nn.Parameter)
        self.parameter = parameter
        self.embedding = isinstance(module, nn.Embedding)
        self.plain: Callable[[Tensor], Tensor] = MethodType(type(module).forward, module)
        self.padding = module.padding_idx if isinstance(module, nn.Embedding) else None
        self.rows = 0

    def __reduce__(self) -> tuple[Any, ...]:
        # A model that a loss copies during a step gets the original forward of its own modules.
        return getattr, (self.module, "forward")

    def available(self) -> bool:
        """Return whether the module can be replaced at present."""
        module, p = self.module, self.parameter
        hooked = p._backward_hooks or p._post_accumulate_grad_hooks
        return (
            p.requires_grad
            and not hooked
            and module._parameters.get("weight") is p
            and "forward" not in module.__dict__
            and module._is_full_backward_hook is not False
        )

    def install(self) -> None:
        """Replace `forward`."""
        self.rows = 0
        self.module.__dict__["forward"] = self

    def remove(self) -> None:
        """Restore `forward`."""
        if self.module.__dict__.get("forward") is self:
            del self.module.__dict__["forward"]

    def __call__(self, input: Tensor) -> Tensor:
        if torch.compiler.is_compiling() or not self._eager(input):
            return self.plain(input)
        if not self.owner._open:  # a repeated forward pass of a checkpoint does not count
            self.rows += input.numel() if self.embedding else input.numel() // input.shape[-1]
        if not torch.is_grad_enabled():
            return self.plain(input)
        if self.embedding:
            return _apply(_Embedding, input, self.parameter, self)
        tensors, kind = [input, self.parameter, self.module._parameters["bias"]], input.device.type
        if not torch.is_autocast_enabled(kind):
            return _apply(_Linear, *tensors, self)
        dtype = torch.get_autocast_dtype(kind)
        with torch.autocast(kind, enabled=False):
            return _apply(_Linear, *(t if t is None else _cast(t, dtype) for t in tensors), self)

    def _eager(self, input: Tensor) -> bool:
        """Return whether this is a plain call on a plain tensor with the module's own weight."""
        return (
            self.module._parameters["weight"] is self.parameter
            and type(input) in (Tensor, nn.Parameter)
            and input.layout == torch.strided
            and input.dim() > 0
            and not torch._C._are_functorch_transforms_active()
        )


class _Linear(torch.autograd.Function):
    """`F.linear` that hands its input and output gradient over instead of a weight gradient."""

    @staticmethod
    def forward(
        ctx: Any, input: Tensor, weight: Tensor, bias: Tensor | None, call: _Call
    ) -> Tensor:
        ctx.save_for_backward(input, weight)
        ctx.call = call
        return functional.linear(input, weight, bias)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (D,) = grads
        input, weight = ctx.saved_tensors
        call: _Call = ctx.call
        for_input = D @ weight if ctx.needs_input_grad[0] else None
        rows = D.reshape(-1, D.shape[-1])
        for_weight = None
        if call.owner._wants(call.parameter):
            # A batch of the caller may be overwritten by the next one; a hidden layer is not.
            A = _kept(input, copy=input.grad_fn is None).reshape(-1, input.shape[-1])
            call.owner._record(call.parameter, A, _kept(rows))
        elif ctx.needs_input_grad[1]:
            for_weight = rows.T @ input.reshape(-1, input.shape[-1])
        for_bias = rows.sum(0) if ctx.needs_input_grad[2] else None
        return for_input, for_weight, for_bias, None


class _Embedding(torch.autograd.Function):
    """`F.embedding` that hands its indices and output gradient over."""

    @staticmethod
    def forward(ctx: Any, input: Tensor, weight: Tensor, call: _Call) -> Tensor:
        ctx.save_for_backward(input)
        ctx.call = call
        return functional.embedding(input, weight, call.padding)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (D,) = grads
        (input,) = ctx.saved_tensors
        call: _Call = ctx.call
        padding = call.padding
        if call.owner._wants(call.parameter):
            indices, rows = input.reshape(-1).to(torch.int64, copy=True), D.flatten(0, -2)
            if padding is not None:
                used = indices != padding
                indices, rows = indices[used], rows[used]
            call.owner._record(call.parameter, indices, _kept(rows))
            return None, None, None
        for_weight = torch.ops.aten.embedding_dense_backward(
            D, input, len(call.parameter), -1 if padding is None else padding, False
        )
        return None, for_weight, None


def _apply(function: type[torch.autograd.Function], *args: object) -> Tensor:
    found: Tensor = function.apply(*args)  # type: ignore[no-untyped-call]
    return found


def _supported(model: nn.Module) -> list[nn.Linear | nn.Embedding]:
    """Return the modules whose weight gradients can be factored."""
    found: list[nn.Linear | nn.Embedding] = []
    modules, seen = [model], {model}
    for module in modules:
        # Compiled code has its own forward pass, and these wrappers their own backward pass.
        compiled = type(module).__name__ == "OptimizedModule" or module._compiled_call_impl
        if compiled or type(module).__name__ in _WRAPPERS:
            # Submodules can also be called on their own; still, leave them alone.
            seen.update(module.modules())
            continue
        children = [m for m in module.children() if m not in seen]
        seen.update(children)
        modules += children
        if isinstance(module, nn.Linear | nn.Embedding) and _is_supported(module):
            found.append(module)
    return found


def _is_supported(module: nn.Linear | nn.Embedding) -> bool:
    p = module._parameters.get("weight")
    # The exact types: subclasses have a forward of their own, and DTensor is a sharded parameter.
    plain = type(p) is nn.Parameter and p.layout == torch.strided
    if p is None or not plain or not p.dtype.is_floating_point or p.device.type == "mps":
        return False  # mps has no float64
    if type(module) is nn.Embedding:
        return not (module.sparse or module.scale_grad_by_freq) and module.max_norm is None
    return type(module) is nn.Linear


def _cast(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """Cast as autocast does: all floating-point dtypes except float64."""
    eligible = tensor.is_floating_point() and tensor.dtype != torch.float64
    return tensor.to(dtype) if eligible else tensor


def _full_precision(tensor: Tensor) -> AbstractContextManager[Any]:
    """Disable autocast, which would round the products to half precision."""
    return torch.autocast(tensor.device.type, enabled=False)


def _kept(tensor: Tensor, *, copy: bool = False) -> Tensor:
    """Detach a tensor. Copy it on demand, and if it would keep a much larger tensor alive."""
    size = tensor.numel() * tensor.element_size()
    copy = copy or tensor.untyped_storage().nbytes() > 2 * size
    return tensor.detach().clone() if copy else tensor.detach()


def _check_unchanged(pair: Pair, parameter: nn.Parameter) -> None:
    if pair.inputs._version != pair.version:
        raise RuntimeError(
            f"the input of a layer with weight of shape {tuple(parameter.shape)} was changed in "
            "place after its backward pass: change a copy instead"
        )


def _form(inputs: Tensor, outputs: Tensor, out: Tensor, *, embedding: bool) -> None:
    """Write the gradient of a pair to `out`; half precision is summed in float32."""
    dtype = torch.promote_types(torch.promote_types(out.dtype, torch.float32), outputs.dtype)
    work = out if out.dtype == dtype else torch.empty_like(out, dtype=dtype)
    if embedding:
        work.zero_().index_add_(0, inputs, outputs.to(dtype))
    elif work.device.type == "cpu":
        # As in `_outer`, and for products of this shape NumPy was 10 % faster than torch.
        with np.errstate(all="ignore"):  # NaN and infinity are reported elsewhere
            np.matmul(outputs.to(dtype).T.numpy(), inputs.to(dtype).numpy(), out=work.numpy())
    else:
        torch.mm(outputs.to(dtype).T, inputs.to(dtype), out=work)
    if work is not out:
        out.copy_(work)


def _outer(x: Tensor, y: Tensor) -> Tensor:
    """Return x yᵀ. On the CPU NumPy takes half the time for x xᵀ, because of its symmetry."""
    if x.device.type == "cpu":
        with np.errstate(all="ignore"):  # NaN and infinity are reported elsewhere
            return torch.from_numpy(x.numpy() @ y.numpy().T)
    return x @ y.T


def _linear_gram(
    inputs: Tensor, outputs: Tensor, owner: Tensor, count: int
) -> tuple[Tensor, Tensor]:
    """Return the inner products (count, count) of the tasks' gradients, and errors (count,).

    The error is that of a task's squared length.

    The products are formed in float64. In float32 their error would grow with the square of the
    cancellation within a task: 1e-3 where the rows of a task cancel to 1/448 of their size.
    """
    A, D = inputs.double(), outputs.double()
    Q = A.new_zeros((count, count))
    sizes = A.new_zeros(count)
    for i in range(0, len(A), _ROWS):
        a, d, mine = (x[i : i + _ROWS] for x in (A, D, owner))
        for j in range(0, i + 1, _ROWS):
            K = _outer(a, a if i == j else A[j : j + _ROWS])
            K *= _outer(d, d if i == j else D[j : j + _ROWS])
            # Sum over the rows of each task, then over the columns.
            part = A.new_zeros((count, K.shape[1])).index_add_(0, mine, K)
            part = torch.zeros_like(Q).index_add_(1, owner[j : j + _ROWS], part)
            Q += part if i == j else part + part.T
            if i == j:
                sizes.index_add_(0, mine, K.diagonal().sqrt())  # |a||d| of each row
    return Q, _ROUNDING * sizes**2


def _embedding_gram(
    indices: Tensor, outputs: Tensor, owner: Tensor, count: int, entries: int
) -> Tensor:
    """Return the inner products (count, count) of the tasks' gradients."""
    # One row per task and index.
    keys, inverse = torch.unique(owner * entries + indices, return_inverse=True)
    sums = outputs.new_zeros((len(keys), outputs.shape[1]), dtype=torch.float64)
    sums.index_add_(0, inverse, outputs.double())
    tasks, tokens = keys // entries, keys % entries
    _, position, uses = torch.unique(tokens, return_inverse=True, return_counts=True)
    alone = uses[position] == 1
    Q = sums.new_zeros((count, count))
    # An index that only one task uses adds to the length of that task's gradient only.
    Q.diagonal().index_add_(0, tasks[alone], sums[alone].square().sum(1))
    order = position[~alone].argsort()
    sums, tasks, position = (x[~alone][order] for x in (sums, tasks, position))
    shared = torch.unique_consecutive(position, return_inverse=True)[1]
    width = max(1, _NUMBERS // (count * sums.shape[1]))
    total = int(shared[-1]) + 1 if len(shared) else 0
    starts = torch.arange(0, total + width, width, device=shared.device)
    cuts = torch.searchsorted(shared, starts).tolist()
    for k, (start, stop) in enumerate(pairwise(cuts)):
        block = sums.new_zeros((count, width, sums.shape[1]))
        block[tasks[start:stop], shared[start:stop] - k * width] = sums[start:stop]
        rows = block.view(count, -1)
        Q += _outer(rows, rows)
    return Q


def _square(tensor: Tensor) -> float:
    """Return the squared length of a tensor, summed in float64."""
    flat = tensor.reshape(-1)
    return float(sum(part.double().square().sum() for part in torch.split(flat, _NUMBERS)))


def _measured(rows: Tensor) -> gp.Products:
    """Measure gradients (T + 1, size), the new task's last."""
    if rows.device.type == "cpu":
        found = rows.numpy()
        return gp.measure_layers([found[-1]], [found[:-1]], check=False)[0]
    return gp.measure_layers([rows[-1]], [rows[:-1]], check=False)[0]
