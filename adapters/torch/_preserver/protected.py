"""`Protected`: one layer's parameters as a matrix [W b], what is known of its old inputs, and M."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

import gradproj as gp
from gradproj.adapters.torch._preserver.kinds import Convolution, Kind, Linear
from gradproj.adapters.torch._preserver.low_rank import moved, parts, restricted, whole
from gradproj.adapters.torch._preserver.pairs import Pairs, worthwhile

# Which of a layer's parameters change in a step; the input rows have columns for these alone.
Part = Literal["both", "weight", "bias"]
# What a layer is known by: its weight, and the first of its rows if it is a part of a parameter.
Key = tuple[nn.Parameter, int]


@dataclass(frozen=True)
class Place:
    """Where a parameter is found: it may be replaced by another one, as by ``model.to``."""

    module: nn.Module
    name: str
    rows: slice | None = None

    @property
    def parameter(self) -> nn.Parameter | None:
        """The whole parameter, if there is one."""
        return self.module._parameters.get(self.name)

    def part(self, tensor: Tensor) -> Tensor:
        """Return a view of the rows of a parameter, gradient or change."""
        return tensor if self.rows is None else tensor[self.rows]


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
        Of the inputs observed since the last task ended.
    S : Tensor or None
        The sum of the second moments of the old tasks, for the soft form.
    basis : list of InputBasis
        For the hard form: one basis per group or channel.
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
        self.S: Any = None
        self.basis: list[gp.InputBasis] = []
        self._operators: dict[tuple[Any, ...], Any] = {}
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
        """What tells the layer from all others of a model."""
        rows = self.places["weight"].rows
        return self.parameters["weight"], 0 if rows is None else rows.start

    @property
    def trainable(self) -> bool:
        """Whether any of the parameters is trained."""
        return any(p.requires_grad for p in self.parameters.values())

    @property
    def known(self) -> bool:
        """Whether a task has ended whose inputs are preserved."""
        return self.S is not None or bool(self.basis)

    @property
    def bytes(self) -> int:
        """Memory in use."""
        return sum(t.numel() * t.element_size() for t in self._tensors())

    def parts(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return views of what belongs to the layer, of tensors like its parameters."""
        return {name: self.places[name].part(tensor) for name, tensor in tensors.items()}

    def observe(self, module: nn.Module, input: Tensor, keep: Tensor | None) -> None:
        """Add one input of one of the modules to the moments."""
        try:
            self.moments = self.uses[module].add(self.moments, input.detach(), keep)
        except gp.NotFiniteError as error:
            raise gp.NotFiniteError(f"an input of layer {self.name!r}: {error}") from None

    def consolidate_soft(self, *, scaled: bool) -> None:
        """Add the observed moments to those of the old tasks."""
        found = self._narrowed(self.moments.matrix(scaled=scaled))
        if self.S is not None:
            found = moved(self.S, parts(found)[0].device) + found
        self.S = found
        self._restart()

    def consolidate_hard(self, share: float, importance: float | None) -> None:
        """Extend the basis of the old inputs by those that were observed."""
        S = self._narrowed(self.moments.matrix())
        single = S.reshape(-1, *S.shape[-2:])
        self.basis = [
            gp.input_basis(
                each,
                share=share,
                basis=_moved(self.basis[k], S) if self.basis else None,
                scale=importance,
            )
            for k, each in enumerate(single)
        ]
        self._restart()

    def watch(self, strength: float) -> None:
        """See the inputs and output gradients of later passes, if they make steps faster."""
        if not self._changes(strength):
            self._pairs = None
            return
        module = self.places["weight"].module
        if self._pairs is not None or list(self.uses) != [module]:
            return
        if type(module) is nn.Linear and worthwhile(1, *self.kind.shape):
            self._pairs = Pairs(module)

    def project(self, weight: Tensor | None, bias: Tensor | None, strength: float) -> None:
        """Replace changes [ΔW Δb] of the parameters, or gradients, by those that preserve.

        The tensors keep their memory. One that is None belongs to a parameter that does not change.

        Raises
        ------
        NotFiniteError
            If they contain NaN or infinity.
        """
        if (weight is None and bias is None) or not self._changes(strength):
            return
        part: Part = "both" if weight is not None and bias is not None else "weight"
        if weight is None:
            part = "bias"
        if weight is not None and self._smaller_side(weight, bias, part, strength):
            return
        g = self._matrix(weight, bias)
        if not math.isfinite(float(g.sum())) and not bool(g.isfinite().all()):
            raise gp.NotFiniteError(
                f"the gradient of layer {self.name!r} contains NaN or infinity: skip this step"
            )
        with _full_precision(g.device.type):
            w = self._product(part, g, strength)
        self._write(w, weight, bias)

    def total(self) -> Tensor:
        """Return a copy of the sum of aᵀa so far, which is zero if nothing was observed."""
        if self.moments.count:
            found: Tensor = self.moments.total
            return found.clone()
        lead, width = self.kind.shape[:-2], self.width
        shape = (width,) if self.moments.diagonal else (*lead, width, width)
        first = next(iter(self.parameters.values()))
        return first.new_zeros(shape, dtype=torch.float64)

    def state_dict(self) -> dict[str, Any]:
        """Return tensors and numbers."""
        return {
            "moments": self.moments.state_dict(),
            "S": list(parts(self.S)) if isinstance(self.S, gp.LowRankMoments) else self.S,
            "basis": [[basis.vectors, basis.importance] for basis in self.basis],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what :meth:`state_dict` returned."""
        self._check(state)
        self._restart()
        device = next(iter(self.parameters.values())).device
        moments = {
            name: value.to(device) if isinstance(value, Tensor) else value
            for name, value in state["moments"].items()
        }
        self.moments.load_state_dict(moments)
        self.S = None if state["S"] is None else moved(whole(state["S"]), device)
        self.basis = [gp.InputBasis(B.to(device), v.to(device)) for B, v in state["basis"]]

    def _changes(self, strength: float) -> bool:
        """Whether steps are changed."""
        return bool(self.basis) or (self.S is not None and strength > 0)

    def _narrowed(self, S: Any) -> Any:
        """Return S in the dtype of the parameters, or in float32 if they have 16 bits.

        Sums that were formed here or by several processes are in float64.
        """
        dtype = next(iter(self.parameters.values())).dtype
        return moved(S, torch.promote_types(dtype, torch.float32))

    def _check(self, state: Mapping[str, Any]) -> None:
        """Raise if a state is that of a layer with other inputs."""
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

    def limit(self, rank: int) -> None:
        """Keep the leading directions of the inputs alone, if that takes less memory."""
        low = isinstance(self.kind, Linear | Convolution) and 2 * rank < self.width
        self.rank = rank if low else None
        self._restart()

    @property
    def width(self) -> int:
        """The number of inputs, with the 1 for the bias."""
        return self.kind.shape[-1] + self.kind.bias

    def _restart(self) -> None:
        self.moments = self.kind.empty() if self.rank is None else gp.InputMoments(rank=self.rank)
        self._operators = {}

    def _smaller_side(
        self, weight: Tensor, bias: Tensor | None, part: Part, strength: float
    ) -> bool:
        """Write the update as a product of few rows; return whether that was possible."""
        found = None if self._pairs is None else self._pairs.take(weight, bias)
        if found is None:
            return False
        A, D = found
        with _full_precision(A.device.type):
            changed = self._product(part, A, strength)
            torch.mm(D.T, changed[:, : weight.shape[1]], out=weight)
            if bias is not None:
                torch.mv(D.T, changed[:, -1], out=bias)
        return True

    def _matrix(self, weight: Tensor | None, bias: Tensor | None) -> Tensor:
        """Return [ΔW Δb] in float32 or better; a new tensor unless there is only a weight."""
        kind = self.kind
        parts = []
        if weight is not None:
            parts.append((weight.T if kind.transposed else weight).reshape(kind.shape))
        if bias is not None:
            parts.append(bias.reshape(*kind.shape[:-1], 1))
        wide = torch.promote_types(parts[0].dtype, torch.float32)
        joined = parts[0] if len(parts) == 1 else torch.cat([t.to(wide) for t in parts], -1)
        return joined.to(wide)

    def _write(self, w: Tensor, weight: Tensor | None, bias: Tensor | None) -> None:
        if bias is not None:
            bias.copy_(w[..., -1].reshape(bias.shape))
        if weight is not None:
            inside = w[..., : self.kind.shape[-1]]
            weight.copy_(inside.T if self.kind.transposed else inside.reshape(weight.shape))

    def _product(self, part: Part, g: Tensor, strength: float) -> Tensor:
        """Return g M."""
        key = (part, g.dtype, g.device, None if self.basis else strength)
        if key not in self._operators:
            # Only one is kept: M is as large as S.
            self._operators = {key: self._prepared(part, g, strength)}
        operator = self._operators[key]
        w: Tensor = g @ operator if isinstance(operator, Tensor) else operator.apply(g)
        return w

    def _prepared(self, part: Part, like: Tensor, strength: float) -> Tensor | gp.Preservation:
        """Return M for this dtype and device: a matrix, or an operator in another form."""
        columns = slice(None)
        if self.kind.bias and part != "both":
            columns = slice(-1, None) if part == "bias" else slice(0, -1)
        if not self.basis:
            S = moved(self.S, like.device)
            if columns != slice(None):
                S = restricted(S, columns)
            return _plain(gp.Preservation.soft(S, strength, dtype=like.dtype))
        bases = [_columns(_moved(basis, like), columns) for basis in self.basis]
        if len(bases) == 1 and len(self.kind.shape) == 2:
            return _plain(gp.Preservation.hard(bases[0], dtype=like.dtype))
        eye = torch.eye(bases[0].vectors.shape[-1], dtype=like.dtype, device=like.device)
        return torch.stack([_hard(basis, eye, like.dtype) for basis in bases])

    def _tensors(self) -> Iterator[Tensor]:
        """Return the large tensors that are kept."""
        if self.S is not None:
            yield from parts(self.S)
        for basis in self.basis:
            yield basis.vectors
            yield basis.importance
        yield from (t for t in self.moments.state_dict().values() if isinstance(t, Tensor))
        for operator in self._operators.values():
            if isinstance(operator, Tensor):
                yield operator


def _plain(operator: gp.Preservation) -> Tensor | gp.Preservation:
    """Return the matrix M if there is one: multiplying by it needs no checks in each step."""
    matrix: Tensor | None = operator.matrix
    return operator if matrix is None else matrix


def _full_precision(device: str) -> AbstractContextManager[Any]:
    """Switch autocast off. Entering its context takes as long as a small product."""
    if torch.is_autocast_enabled(device):
        return torch.autocast(device, enabled=False)
    return nullcontext()


def _hard(basis: gp.InputBasis, eye: Tensor, dtype: torch.dtype) -> Tensor:
    return gp.Preservation.hard(basis, dtype=dtype).apply(eye)


def _columns(basis: gp.InputBasis, columns: slice) -> gp.InputBasis:
    """Return a basis of the inputs of some columns alone, for parameters that do not all change."""
    if columns == slice(None):
        return basis
    vectors = basis.vectors[:, columns].double()
    U, size, rows = torch.linalg.svd(vectors, full_matrices=False)
    kept = size > torch.finfo(basis.vectors.dtype).eps ** 0.5
    weights = (U.square() * basis.importance.double()[:, None]).sum(0)
    dtype = basis.vectors.dtype
    return gp.InputBasis(rows[kept].to(dtype), weights[kept].to(dtype))


def _moved(basis: gp.InputBasis, like: Tensor) -> gp.InputBasis:
    return gp.InputBasis(basis.vectors.to(like.device), basis.importance.to(like.device))
