"""`Observer`: what a preserver knows of old inputs, and how it learns it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn
from torch import distributed as dist

from gradproj.adapters.torch import _arguments
from gradproj.adapters.torch._eager import eager
from gradproj.adapters.torch._preserver.find import as_patterns
from gradproj.adapters.torch._preserver.memory import MemoryReport, warn_of_wide
from gradproj.adapters.torch._preserver.network import Network
from gradproj.adapters.torch._preserver.options import (
    checked_importance,
    checked_rank,
    checked_strength,
    shares_by_layer,
)


class Observer:
    """The part of :class:`Preserver` that does not change gradients.

    It holds the settings, records the inputs of a task and ends the task. The parameters are those
    of :class:`Preserver`.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        strength: float,
        share: float | Mapping[str, float] | None,
        importance: float | None,
        layers: Sequence[str] | None,
        exclude: Sequence[str],
        rank: int | None,
        scaled: bool,
        process_group: dist.ProcessGroup | None,
    ) -> None:
        _arguments.model(model)
        self.model = model
        self.strength = strength
        self._hard = share is not None
        self.scaled = scaled
        self.tasks = 0
        chosen = None if layers is None else as_patterns("layers", layers)
        excluded = as_patterns("exclude", exclude)
        self._network = Network(model, chosen, excluded, hard=self._hard, group=process_group)
        self._layers = self._network.layers
        self.rank = checked_rank(rank)
        self._check_rank()
        if rank is None:
            warn_of_wide(self._layers)
        else:
            for layer in self._layers:
                layer.limit(rank)
        self.share = share
        self.importance = checked_importance(importance, hard=self._hard)
        self._observing = False

    @property
    def strength(self) -> float:
        """The strength λ of the soft form."""
        return self._strength

    @strength.setter
    def strength(self, strength: float) -> None:
        self._strength = checked_strength(strength)

    @property
    def share(self) -> float | Mapping[str, float] | None:
        """The share of each task's inputs that the hard form keeps, or one share per layer."""
        return self._share

    @share.setter
    def share(self, share: float | Mapping[str, float] | None) -> None:
        if (share is not None) != self._hard:
            raise ValueError(
                f"share={share!r} would change the form of the projection; build another Preserver"
            )
        self._shares = {} if share is None else shares_by_layer(share, self._network.names)
        self._share = share

    @property
    def process_group(self) -> dist.ProcessGroup | None:
        """The processes whose observed inputs add up, if they were given.

        A trainer that starts the processes itself can set them before the first task ends.
        """
        return self._network.group

    @process_group.setter
    def process_group(self, group: dist.ProcessGroup | None) -> None:
        self._network.group = group
        self._check_rank()

    @property
    def protected(self) -> dict[str, tuple[str, ...]]:
        """Layer name to the names of its parameters."""
        return self._network.protected()

    @property
    def unprotected(self) -> dict[str, str]:
        """Name of each parameter that is not protected, to the reason.

        After the first task it also names layers whose inputs no task has observed: the heads of
        later tasks, for example, or a layer whose weight is used without calling its module.
        """
        return self._network.unprotected(started=self.tasks > 0)

    @property
    def memory(self) -> MemoryReport:
        """Bytes per layer that are in use; ``print(preserver.memory)`` prints a table.

        A layer with n inputs takes n² numbers for S and as many for its factor, and n² in float64
        while a task is observed. Memory that layers share counts for the first one.
        """
        return MemoryReport.of(self._layers)

    @contextmanager
    def observe(self, mask: Tensor | None = None) -> Iterator[None]:
        """Record the inputs of the protected layers in all forward passes inside.

        The passes may be those of training, or a loop over unlabelled data under
        ``torch.no_grad()``. Outputs, gradients, running statistics and random numbers are the same
        as without. Attention is computed twice, and without torch's fast path for evaluation, so
        that outputs may differ by rounding and at padded positions.

        Parameters
        ----------
        mask : Tensor, optional
            Which positions count: True or 1 for tokens, False or 0 for padding, as the attention
            mask of a tokenizer. It applies to inputs whose first dimensions are its shape, or are
            that shape flattened; all other inputs count in full. Use one `observe` per batch.

        Examples
        --------
        >>> import torch
        >>> from gradproj.adapters.torch import Preserver
        >>> model = torch.nn.Sequential(torch.nn.Embedding(9, 4), torch.nn.Linear(4, 2))
        >>> preserver = Preserver(model)
        >>> tokens = torch.tensor([[5, 6, 7], [8, 0, 0]])
        >>> with torch.no_grad(), preserver.observe(mask=tokens != 0):
        ...     _ = model(tokens)
        >>> preserver.consolidate()
        """
        if mask is not None:
            if not isinstance(mask, Tensor):
                raise TypeError(f"mask is a {type(mask).__name__}; pass a tensor of 0 and 1")
            mask = mask.bool()
        if self._observing:
            raise RuntimeError("observe() is active already: inputs would be counted twice")
        self._observing = True
        try:
            with self._network.recording(mask):
                yield
        finally:
            self._observing = False

    @eager
    def consolidate(self) -> None:
        """End a task: from now on, preserve the answers to the inputs that were observed.

        Layers that were not observed keep what they know of earlier tasks. Inputs that stand for
        the knowledge of a pretrained model are a task like any other: observe and consolidate them
        before the first step.
        """
        observed = self._network.observed()
        if not observed:
            raise RuntimeError(
                "no inputs were observed since the last task; run forward passes inside of "
                "`with preserver.observe():` first"
            )
        for layer in observed:
            if self._hard:
                layer.consolidate_hard(self._shares[layer.name], self.importance)
            else:
                layer.consolidate_soft(scaled=self.scaled)
        self._network.share_equal()
        self.tasks += 1

    def state_dict(self) -> dict[str, Any]:
        """Return what is known of all inputs; ``torch.load(weights_only=True)`` reads it back."""
        return {
            "tasks": self.tasks,
            "hard": self._hard,
            "layers": self._network.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a :meth:`state_dict`, into a preserver with the same layers and options."""
        missing = [key for key in ("tasks", "hard", "layers") if key not in state]
        if missing:
            raise ValueError(f"state has no {missing}: pass the state_dict() of a Preserver")
        if state["hard"] != self._hard:
            kinds = {True: "share", False: "strength"}
            raise ValueError(
                f"state was made with a {kinds[state['hard']]} and the preserver has a "
                f"{kinds[self._hard]}; build the preserver as it was"
            )
        self._network.load_state_dict(state["layers"])
        self.tasks = state["tasks"]

    def _check_rank(self) -> None:
        if self.rank is None:
            return
        if self._hard or self._network.processes is not None:
            raise ValueError(
                f"rank={self.rank!r} is for the soft form in one process: use a strength instead "
                "of a share, and a model that is not distributed"
            )
