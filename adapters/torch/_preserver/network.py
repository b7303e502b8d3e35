"""`Network`: all protected layers of one model, and what a preserver does with all of them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist

from gradproj.adapters.torch._layout import unwrapped
from gradproj.adapters.torch._preserver.find import find
from gradproj.adapters.torch._preserver.old_inputs import shared
from gradproj.adapters.torch._preserver.processes import add_up, group_of
from gradproj.adapters.torch._preserver.protected import Protected
from gradproj.adapters.torch._preserver.recording import recording
from gradproj.adapters.torch._shards import is_sharded

_UNSEEN = "no task called it inside of observe()"
_FROZEN = "frozen in all tasks so far"


class Network:
    """The protected layers of a model.

    Parameters
    ----------
    model : Module
        The model, with or without torch's wrappers.
    layers, exclude : sequences of str
        Patterns for names of modules, see :func:`find`.
    hard : bool
        Whether the hard projection is used.
    group : ProcessGroup, optional
        Processes whose observed inputs add up; those of a ``DistributedDataParallel`` model unless
        given.
    """

    def __init__(
        self,
        model: nn.Module,
        layers: Sequence[str] | None,
        exclude: Sequence[str],
        *,
        hard: bool,
        group: dist.ProcessGroup | None,
    ) -> None:
        self.model = model
        self.group = group
        self.layers, self._unprotected = find(unwrapped(model), layers, exclude, hard=hard)
        self._named = layers is not None
        if not self.layers:
            raise ValueError(_nothing_to_protect(self._unprotected))

    @property
    def names(self) -> list[str]:
        """The names of the layers."""
        return [layer.name for layer in self.layers]

    @property
    def processes(self) -> Any:
        """The processes whose observed inputs add up, or None if there is only one."""
        return group_of(self.model, self.group)

    def protected(self) -> dict[str, tuple[str, ...]]:
        """Return layer name to the names of its parameters."""
        names = self._parameter_names()
        return {
            layer.name: tuple(names[p] for p in layer.parameters.values()) for layer in self.layers
        }

    def unprotected(self, *, started: bool) -> dict[str, str]:
        """Return the name of each parameter that is not protected, to the reason.

        Once a task has ended (`started`), these include layers whose inputs were not observed.
        """
        unknown = [layer for layer in self.layers if started and not layer.old.known]
        names = self._parameter_names()
        return self._unprotected | {
            names[p]: _UNSEEN if self._records(layer) else _FROZEN
            for layer in unknown
            for p in layer.parameters.values()
        }

    def recording(self, mask: Tensor | None) -> AbstractContextManager[None]:
        """Record the inputs of all forward passes inside."""
        self._check_layers()
        return recording([layer for layer in self.layers if self._records(layer)], mask)

    def observed(self) -> list[Protected]:
        """Return the layers with inputs since the last task ended, summed over all processes."""
        if self.processes is not None:
            add_up([layer for layer in self.layers if self._records(layer)], self.processes)
        return [layer for layer in self.layers if layer.moments.count]

    def share_equal(self) -> None:
        """Let layers with equal old inputs share their memory and their operator."""
        for layer, old in zip(self.layers, shared(each.old for each in self.layers), strict=True):
            layer.old = old

    @torch.no_grad()
    def project(self, strength: float, parameters: Collection[nn.Parameter] | None) -> None:
        """Change the gradients of some parameters, or of all."""
        # Processes of one model must not differ by the rounding of two algorithms.
        alone = self.processes is None
        for layer in self.layers:
            grads = layer.parts(
                {
                    name: p.grad
                    for name, p in layer.parameters.items()
                    if p.grad is not None and (parameters is None or p in parameters)
                }
            )
            layer.project(grads.get("weight"), grads.get("bias"), strength)
            if grads and alone:
                layer.watch(strength)

    def state_dict(self) -> dict[str, Any]:
        """Return tensors and numbers, by layer."""
        return {layer.name: layer.state_dict() for layer in self.layers}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the result of :meth:`state_dict`."""
        if list(state) != self.names:
            raise ValueError(
                f"state has the layers {list(state)} and the preserver {self.names}; build the "
                "model and the preserver as they were"
            )
        for layer in self.layers:
            layer.load_state_dict(state[layer.name])
        self.share_equal()

    def _parameter_names(self) -> dict[nn.Parameter, str]:
        self._check_layers()
        return {p: name for name, p in unwrapped(self.model).named_parameters()}

    def _check_layers(self) -> None:
        """Raise if a layer was replaced in the model or sharded since the preserver was built."""
        present = set(unwrapped(self.model).parameters())
        for layer in self.layers:
            parameters = layer.parameters.values()
            if not present.issuperset(parameters):
                raise RuntimeError(
                    f"layer {layer.name!r} of the model was replaced after the Preserver was "
                    "built: build a new Preserver, or exclude layers that are replaced, such as "
                    "output layers that grow"
                )
            if any(is_sharded(p) for p in parameters):
                raise RuntimeError(
                    f"layer {layer.name!r} was sharded over processes after the Preserver was "
                    "built, which it does not support: use DistributedDataParallel, or exclude "
                    "the layers that fully_shard gets"
                )

    def _records(self, layer: Protected) -> bool:
        """Return whether inputs of a layer are recorded: frozen layers only if they are named."""
        return self._named or layer.trainable


def _nothing_to_protect(reasons: Mapping[str, str]) -> str:
    """Return an error text that names the first parameters and why they are not protected."""
    if not reasons:
        return "the model has no parameters: pass a model with layers to protect"
    first = "; ".join(f"{name}: {reason}" for name, reason in list(reasons.items())[:5])
    return f"the model has no layer that can be protected: {first}{'; …' * (len(reasons) > 5)}"
