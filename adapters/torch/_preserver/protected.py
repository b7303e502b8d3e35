"""`Protected`: one layer, with its parameters as a matrix [W b] and what is known of its inputs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

import gradproj as gp
from gradproj.adapters.torch._preserver.kinds import Convolution, Kind, Linear
from gradproj.adapters.torch._preserver.low_rank import moved, parts, whole
from gradproj.adapters.torch._preserver.old_inputs import OldInputs
from gradproj.adapters.torch._preserver.operators import Columns, product
from gradproj.adapters.torch._preserver.pairs import Pairs, worthwhile
from gradproj.adapters.torch._preserver.places import Place

# A layer is identified by its weight, and by the first of its rows if it is a part of a parameter.
Key = tuple[nn.Parameter, int]


class Protected:
    """One layer whose answers to old inputs are preserved.

    Parameters
    ----------
    name : str
        Name of the module, or of the first one that uses tied parameters.
    uses : dict
        The modules that are called with its inputs, and the kind of each. Their moments add up.
    places : dict
        Where its "weight" and "bias" are.

    Attributes
    ----------
    moments : InputMoments
        Moments of the inputs observed since the last task ended.
    old : OldInputs
        The inputs of the tasks that have ended. Several layers may have the same object.
    """

    def __init__(
        self, name: str, uses: Mapping[nn.Module, Kind], places: Mapping[str, Place]
    ) -> None:
        self.name = name
        self.uses = dict(uses)
        self.kind = next(iter(uses.values()))
        names = ("weight", "bias") if self.kind.bias else ("weight",)
        self.places = {name: places[name] for name in names}
        self.rank: int | None = None
        self.moments = self.kind.empty()
        self.old = OldInputs()
        self._pairs: Pairs | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_pairs": None}  # a copy has another module

    @property
    def parameters(self) -> dict[str, nn.Parameter]:
        """The parameters that exist, as "weight" and "bias"; a layer may be a part of them."""
        found = {name: place.parameter for name, place in self.places.items()}
        return {name: p for name, p in found.items() if p is not None}

    @property
    def key(self) -> Key:
        """The key that identifies the layer in its model."""
        rows = self.places["weight"].rows
        return self.parameters["weight"], 0 if rows is None else rows.start

    @property
    def trainable(self) -> bool:
        """Whether any of the parameters is trained."""
        return any(p.requires_grad for p in self.parameters.values())

    @property
    def width(self) -> int:
        """The number of inputs, with the 1 for the bias."""
        return self.kind.shape[-1] + self.kind.bias

    def observed(self) -> Iterator[Tensor]:
        """Yield the tensors of the moments since the last task ended."""
        yield from (t for t in self.moments.state_dict().values() if isinstance(t, Tensor))

    def parts(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return views of the rows that belong to the layer, of tensors like its parameters."""
        return {name: self.places[name].part(tensor) for name, tensor in tensors.items()}

    def limit(self, rank: int) -> None:
        """Keep only the leading directions of the inputs, if that takes less memory."""
        low = isinstance(self.kind, Linear | Convolution) and 2 * rank < self.width
        self.rank = rank if low else None
        self._restart()

    def observe(self, module: nn.Module, input: Tensor, keep: Tensor | None) -> None:
        """Add one input of one of the modules to the moments."""
        try:
            self.moments = self.uses[module].add(self.moments, input.detach(), keep)
        except gp.NotFiniteError as error:
            raise gp.NotFiniteError(f"an input of layer {self.name!r}: {error}") from None

    def total(self) -> Tensor:
        """Return a copy of the sum of aᵀa so far, which is zero if no input was observed."""
        if self.moments.count:
            found: Tensor = self.moments.total
            return found.clone()
        lead, width = self.kind.shape[:-2], self.width
        shape = (width,) if self.moments.diagonal else (*lead, width, width)
        first = next(iter(self.parameters.values()))
        return first.new_zeros(shape, dtype=torch.float64)

    def consolidate_soft(self, *, scaled: bool) -> None:
        """Add the observed moments to those of the old tasks."""
        self.old = self.old.and_soft(self._narrowed(self.moments.matrix(scaled=scaled)))
        self._restart()

    def consolidate_hard(self, share: float, importance: float | None) -> None:
        """Extend the basis of the old inputs by the observed ones."""
        self.old = self.old.and_hard(self._narrowed(self.moments.matrix()), share, importance)
        self._restart()

    def watch(self, strength: float) -> None:
        """Record inputs and output gradients of later passes, if they make steps faster."""
        if not self.old.changes(strength):
            self._pairs = None
            return
        module = self.places["weight"].module
        if self._pairs is not None or list(self.uses) != [module]:
            return
        if type(module) is nn.Linear and worthwhile(1, *self.kind.shape):
            self._pairs = Pairs(module)

    def project(self, weight: Tensor | None, bias: Tensor | None, strength: float) -> None:
        """Replace changes [ΔW Δb] of the parameters, or gradients, by those that preserve.

        The tensors keep their memory. Pass None for a parameter that does not change.

        Raises
        ------
        NotFiniteError
            If they contain NaN or infinity.
        """
        if (weight is None and bias is None) or not self.old.changes(strength):
            return
        if weight is not None and self._from_pairs(weight, bias, strength):
            return
        g = self._matrix(weight, bias)
        if not math.isfinite(float(g.sum())) and not bool(g.isfinite().all()):
            raise gp.NotFiniteError(
                f"the gradient of layer {self.name!r} contains NaN or infinity: skip this step"
            )
        with _full_precision(g.device.type):
            w = product(g, self.old.operator(self._columns(weight, bias), g, strength))
        self._write(w, weight, bias)

    def state_dict(self) -> dict[str, Any]:
        """Return tensors and numbers."""
        return {"moments": self.moments.state_dict(), **self.old.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the result of :meth:`state_dict`."""
        self._check(state)
        self._restart()
        device = next(iter(self.parameters.values())).device
        moments = {
            name: value.to(device) if isinstance(value, Tensor) else value
            for name, value in state["moments"].items()
        }
        self.moments.load_state_dict(moments)
        self.old = OldInputs.from_state(state, device, batched=len(self.kind.shape) > 2)

    def _narrowed(self, S: Any) -> Any:
        """Return S in the dtype of the parameters, or in float32 if they have 16 bits.

        Sums that were formed here or by several processes are in float64.
        """
        dtype = next(iter(self.parameters.values())).dtype
        return moved(S, torch.promote_types(dtype, torch.float32))

    def _check(self, state: Mapping[str, Any]) -> None:
        """Raise if a state belongs to a layer with other inputs."""
        width = self.width
        found = [B for B, _ in state["basis"]]
        if state["S"] is not None:
            found += parts(whole(state["S"]))[:1]
        found += [t for name, t in state["moments"].items() if name in ("like", "total")]
        for tensor in found:
            if tensor.shape[-1] != width:
                raise ValueError(
                    f"state of layer {self.name!r} has a tensor of shape {tuple(tensor.shape)} and "
                    f"the layer has {width} inputs; build the model as it was"
                )

    def _restart(self) -> None:
        self.moments = self.kind.empty() if self.rank is None else gp.InputMoments(rank=self.rank)

    def _columns(self, weight: Tensor | None, bias: Tensor | None) -> Columns:
        """Return which columns of the input rows belong to parameters that change."""
        if not self.kind.bias or (weight is not None and bias is not None):
            return "all"
        return "bias" if weight is None else "weight"

    def _from_pairs(self, weight: Tensor, bias: Tensor | None, strength: float) -> bool:
        """Write the update as a product of few rows; return whether that was possible."""
        found = None if self._pairs is None else self._pairs.take(weight, bias)
        if found is None:
            return False
        A, D = found
        with _full_precision(A.device.type):
            changed = product(A, self.old.operator(self._columns(weight, bias), A, strength))
            torch.mm(D.T, changed[:, : weight.shape[1]], out=weight)
            if bias is not None:
                torch.mv(D.T, changed[:, -1], out=bias)
        return True

    def _matrix(self, weight: Tensor | None, bias: Tensor | None) -> Tensor:
        """Return [ΔW Δb] in float32 or better; a new tensor unless there is only a weight."""
        kind = self.kind
        parts = []
        if weight is not None:
            if weight.numel() != math.prod(kind.shape):
                raise ValueError(
                    f"the weight of layer {self.name!r} has another shape than when the Preserver "
                    f"was built: found {tuple(weight.shape)}; build a new Preserver and observe "
                    "the old inputs again, or exclude layers that grow"
                )
            parts.append((weight.T if kind.transposed else weight).reshape(kind.shape))
        if bias is not None:
            parts.append(bias.reshape(*kind.shape[:-1], 1))
        joined = parts[0] if len(parts) == 1 else torch.cat(parts, -1)
        return joined.float() if joined.element_size() < 4 else joined

    def _write(self, w: Tensor, weight: Tensor | None, bias: Tensor | None) -> None:
        if bias is not None:
            bias.copy_(w[..., -1].reshape(bias.shape))
        if weight is not None:
            inside = w[..., : self.kind.shape[-1]]
            weight.copy_(inside.T if self.kind.transposed else inside.reshape(weight.shape))


def _full_precision(device: str) -> AbstractContextManager[Any]:
    """Switch autocast off. Entering its context takes as long as a small product."""
    if torch.is_autocast_enabled(device):
        return torch.autocast(device, enabled=False)
    return nullcontext()
