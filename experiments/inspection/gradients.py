"""Measurements of gradients, layer by layer, that help to choose rank, strength and layers.

`measure` works on any model and batches. `short_run` first trains the model for a few steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

import gradproj as gp
from gradproj.adapters.torch import Layers, group_parameters, keep_running_statistics

__all__ = ["Inspection", "LayerView", "gradients_of", "measure", "short_run", "training_moments"]

Array = NDArray[np.float64]
Batch = Sequence[Tensor]
Loss = Callable[..., Tensor]


@dataclass(frozen=True, eq=False)
class LayerView:
    """The inner products of one layer's gradients at several moments of training.

    Attributes
    ----------
    name : str
    size : int
        Number of parameters in the layer.
    products : array (moments, T + 1, T + 1)
        Inner products of the gradients: the T old tasks, then the new one.
    """

    name: str
    size: int
    products: Array

    @property
    def old_norms(self) -> Array:
        """Norms of the old tasks' gradients, (moments, T)."""
        return self._norms[:, :-1]

    @property
    def new_norms(self) -> Array:
        """Norms of the new task's gradient, (moments,)."""
        return self._norms[:, -1]

    @property
    def cosines(self) -> Array:
        """Mean cosines between tasks, (T + 1, T + 1), the new one last; 0 where a norm is 0."""
        scale = self._norms[:, :, None] * self._norms[:, None, :]
        safe = np.where(scale > 0, scale, 1.0)
        mean: Array = np.where(scale > 0, self.products / safe, 0.0).mean(axis=0)
        return mean

    @property
    def conflict(self) -> float:
        """Share of moments at which the new gradient opposes the mean of the old ones."""
        return float((self.products[:, -1, :-1].sum(axis=1) < 0).mean())

    @property
    def replay_size(self) -> float:
        """Norm of the sum of the old gradients, relative to the norm of the new one."""
        total = np.sqrt(np.maximum(self.products[:, :-1, :-1].sum(axis=(1, 2)), 0.0))
        safe = np.where(self.new_norms > 0, self.new_norms, 1.0)
        return float(np.where(self.new_norms > 0, total / safe, 0.0).mean())

    @property
    def spectrum(self) -> Array:
        """Shares of the task-specific part along its principal directions, largest first.

        The mean over the moments; T − 1 values that add up to 1 (all 0 where the tasks agree).
        """
        C = self.products[:, :-1, :-1]
        J = np.eye(C.shape[1]) - 1 / C.shape[1]
        values = np.maximum(np.linalg.eigvalsh(J @ C @ J)[:, ::-1], 0.0)[:, : C.shape[1] - 1]
        total = values.sum(axis=1, keepdims=True)
        # The differences of equal gradients are rounding errors and have no direction.
        real = total > 1e-12 * np.trace(C, axis1=1, axis2=2)[:, None]
        mean: Array = np.where(real, values / np.where(real, total, 1.0), 0.0).mean(axis=0)
        return mean

    @property
    def specific_share(self) -> float:
        """Share of the old gradients' squared norm that is not common to them."""
        C = self.products[:, :-1, :-1]
        total = np.trace(C, axis1=1, axis2=2)
        common = C.sum(axis=(1, 2)) / C.shape[1]
        safe = np.where(total > 0, total, 1.0)
        return float(np.where(total > 0, 1 - common / safe, 0.0).mean())

    @property
    def used_up(self) -> bool:
        """Whether the constraints of all old tasks can fix every parameter of the layer."""
        return self.size <= len(self.spectrum)

    def rank_for(self, share: float = 0.9) -> int:
        """Return the least K whose principal directions keep `share` of the specific part.

        Examples
        --------
        >>> products = np.diag([4.0, 4.0, 4.0, 1.0])[None]
        >>> LayerView("layer", 10, products).rank_for(0.9)
        2
        """
        kept_by = np.cumsum(self.spectrum)
        if not kept_by.size or kept_by[-1] == 0:
            return 0
        return int(np.searchsorted(kept_by, share - 1e-9) + 1)

    @property
    def _norms(self) -> Array:
        squares = np.diagonal(self.products, axis1=1, axis2=2)
        return np.sqrt(np.maximum(squares, 0.0))


@dataclass(frozen=True, eq=False)
class Inspection:
    """The layers of a model, and the whole network as one layer."""

    layers: tuple[LayerView, ...]

    @property
    def whole(self) -> LayerView:
        """The network as one layer: inner products add up."""
        products = np.sum([layer.products for layer in self.layers], axis=0)
        return LayerView("all", sum(layer.size for layer in self.layers), products)


def measure(
    model: nn.Module,
    loss: Loss,
    moments: Iterable[tuple[Batch, Sequence[Batch]]],
    layers: Layers = "module",
) -> Inspection:
    """Measure the gradients of old and new tasks on your own model and batches.

    Parameters
    ----------
    model : Module
        Its weights, gradients and running statistics are left as they are.
    loss : callable
        ``loss(model, *batch)`` returns a scalar tensor, as for `Projector.backward_batches`.
    moments : iterable of (new batch, old batches)
        Batches are sequences of tensors, one old batch for each of at least two old tasks. Several
        moments are averaged over; the iterable may train the model between them.
    layers : str, callable or list of groups of names
        As `Projector` takes them.

    Examples
    --------
    >>> model = nn.Linear(3, 1, bias=False)
    >>> old = [(torch.eye(3)[:1],), (torch.eye(3)[1:2],)]
    >>> view = measure(model, lambda model, x: model(x).sum(), [((-torch.ones(1, 3),), old)])
    >>> view.layers[0].conflict, view.layers[0].rank_for(0.9)
    (1.0, 1)
    """
    named = dict(model.named_parameters())
    groups = group_parameters(model, layers)
    found: dict[str, list[Array]] = {name: [] for name in groups}
    for new, old in moments:
        if len(old) < 2:
            raise ValueError(
                f"moments has {len(old)} old batches: expected at least two, one per old task"
            )
        rows = [gradients_of(model, loss, batch, named) for batch in (*old, new)]
        for name, members in groups.items():
            G = np.stack([np.concatenate([row[member] for member in members]) for row in rows])
            if not np.isfinite(G).all():
                raise gp.NotFiniteError(
                    f"the gradients of layer {name!r} hold NaN or infinity: the model diverged "
                    "while it was trained; lower the learning rate, lr"
                )
            found[name].append(G @ G.T)
    if not next(iter(found.values())):
        raise ValueError("moments is empty; give at least one (new batch, old batches)")
    return Inspection(
        tuple(
            LayerView(name, sum(named[m].numel() for m in groups[name]), np.stack(products))
            for name, products in found.items()
        )
    )


def gradients_of(
    model: nn.Module, loss: Loss, batch: Batch, named: dict[str, nn.Parameter]
) -> dict[str, Array]:
    """Return the flat float64 gradient of the loss for each trained parameter."""
    trained = {name: p for name, p in named.items() if p.requires_grad}
    with keep_running_statistics(model):
        value = loss(model, *batch)
        if not isinstance(value, Tensor) or value.numel() != 1:
            found = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
            raise ValueError(f"loss(model, *batch) gave {found}; it must give a scalar tensor")
        parts = torch.autograd.grad(value, list(trained.values()), materialize_grads=True)
    # float64: the specific part is a difference of large, nearly equal gradients.
    return {
        name: part.detach().reshape(-1).to("cpu", torch.float64).numpy()
        for name, part in zip(trained, parts, strict=True)
    }


def short_run(
    model: nn.Module,
    loss: Loss,
    tasks: Sequence[Iterable[Batch]],
    *,
    layers: Layers = "module",
    steps: int = 50,
    moments: int = 20,
    lr: float = 0.1,
) -> Inspection:
    """Train for a few steps on each task, and measure while the last one is learned.

    Parameters
    ----------
    model, loss, layers
        As `measure`. The model is trained with plain SGD.
    tasks : sequence of iterables of batches
        At least three, in order; the last is the new task. Data loaders can be used. An iterable
        that ends is started again.
    steps : int
        Steps on each task before the last; 0 for a model that was trained on them.
    moments : int
        Steps on the last task, with a measurement before each.
    lr : float
        Learning rate.
    """
    moment = training_moments(model, loss, tasks, steps=steps, moments=moments, lr=lr)
    return measure(model, loss, moment, layers)


def training_moments(
    model: nn.Module,
    loss: Loss,
    tasks: Sequence[Iterable[Batch]],
    *,
    steps: int,
    moments: int,
    lr: float,
) -> Iterator[tuple[Batch, Sequence[Batch]]]:
    """Train as `short_run` does, and yield (new batch, old batches) before each of the last steps.

    Errors in the arguments are raised at once, before the iteration starts.
    """
    if len(tasks) < 3:
        raise ValueError(f"tasks holds {len(tasks)}; give at least two old tasks and a new one")
    for name, value, least in (("steps", steps, 0), ("moments", moments, 1)):
        if value < least:
            raise ValueError(f"{name}={value} must be at least {least}")
    return _train(model, loss, tasks, steps, moments, lr)


def _train(
    model: nn.Module,
    loss: Loss,
    tasks: Sequence[Iterable[Batch]],
    steps: int,
    moments: int,
    lr: float,
) -> Iterator[tuple[Batch, Sequence[Batch]]]:
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    streams = [_endless(task, number) for number, task in enumerate(tasks)]
    model.train()

    def train(batch: Batch) -> None:
        optimizer.zero_grad()
        loss(model, *batch).backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    for stream in streams[:-1]:
        for batch in islice(stream, steps):
            train(batch)
    for _ in range(moments):
        new = next(streams[-1])
        yield new, [next(stream) for stream in streams[:-1]]
        train(new)


def _endless(task: Iterable[Batch], number: int) -> Iterator[Batch]:
    if iter(task) is task:
        task = list(task)  # An iterator can only be read once.
    while True:
        batch = None
        for batch in task:
            if not isinstance(batch, tuple | list):
                raise ValueError(
                    f"tasks[{number}] has a batch of type {type(batch).__name__}: expected a tuple "
                    "of the loss's arguments after the model, such as (x, y) or (x,)"
                )
            yield batch
        if batch is None:
            raise ValueError(f"tasks[{number}] has no batches: expected at least one")
