"""`OldInputs`: what is known of the inputs that old tasks fed into a layer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

import gradproj as gp
from gradproj.adapters.torch._preserver import operators
from gradproj.adapters.torch._preserver.low_rank import moved, parts, whole
from gradproj.adapters.torch._preserver.operators import Columns, Operator


class OldInputs:
    """The second moments or the basis of old inputs, and the operator M that follows from them.

    An object never changes, except that it keeps the last M. The end of a task makes a new one.
    Layers whose inputs were the same can therefore use one object, see :func:`shared`.

    Parameters
    ----------
    S : Tensor or LowRankMoments, optional
        The sum of the second moments of the old tasks, for the soft form.
    bases : iterable of InputBasis
        For the hard form: one basis per group or channel.
    batched : bool
        Whether the layer has several groups or channels, with one problem each.
    """

    def __init__(
        self, S: Any = None, bases: Iterable[gp.InputBasis] = (), *, batched: bool = False
    ) -> None:
        self.S = S
        self.bases = tuple(bases)
        self.batched = batched
        self._operators: dict[tuple[Any, ...], Operator] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_operators": {}}  # packed matrices cannot be copied

    @property
    def known(self) -> bool:
        """Whether a task has ended whose inputs are preserved."""
        return self.S is not None or bool(self.bases)

    def changes(self, strength: float) -> bool:
        """Return whether steps are changed at this strength."""
        return bool(self.bases) or (self.S is not None and strength > 0)

    def and_soft(self, found: Any) -> OldInputs:
        """Return these inputs with a task's second moments added."""
        if self.S is not None:
            found = moved(self.S, parts(found)[0].device) + found
        return OldInputs(found)

    def and_hard(self, S: Tensor, share: float, importance: float | None) -> OldInputs:
        """Return these inputs with the basis extended by a task's second moments."""
        single = S.reshape(-1, *S.shape[-2:])
        old: list[Any] = [operators.on_device(basis, S.device) for basis in self.bases]
        grown = [
            gp.input_basis(each, share=share, basis=basis, scale=importance)
            for each, basis in zip(single, old or [None] * len(single), strict=True)
        ]
        return OldInputs(bases=grown, batched=S.ndim > 2)

    def operator(self, columns: Columns, like: Tensor, strength: float) -> Operator:
        """Return M for rows with the dtype and device of `like`."""
        key = (columns, like.dtype, like.device, None if self.bases else strength)
        found = self._operators.get(key)
        if found is None:
            if self.bases:
                found = operators.hard(self.bases, columns, like, batched=self.batched)
            else:
                found = operators.soft(self.S, columns, like, strength)
            # Only one is kept: M is as large as S.
            self._operators = {key: found}
        return found

    def tensors(self) -> Iterator[Tensor]:
        """Yield the tensors that take memory, M included."""
        if self.S is not None:
            yield from parts(self.S)
        for basis in self.bases:
            yield basis.vectors
            yield basis.importance
        for operator in self._operators.values():
            yield from operators.tensors(operator)

    def state_dict(self) -> dict[str, Any]:
        """Return tensors and lists of tensors."""
        return {
            "S": list(parts(self.S)) if isinstance(self.S, gp.LowRankMoments) else self.S,
            "basis": [[basis.vectors, basis.importance] for basis in self.bases],
        }

    @classmethod
    def from_state(
        cls, state: Mapping[str, Any], device: torch.device, *, batched: bool
    ) -> OldInputs:
        """Return what :meth:`state_dict` saved, on a device."""
        S = None if state["S"] is None else moved(whole(state["S"]), device)
        bases = [gp.InputBasis(B.to(device), v.to(device)) for B, v in state["basis"]]
        return cls(S, bases, batched=batched)

    def equals(self, other: OldInputs) -> bool:
        """Return whether all numbers are the same, without M."""
        mine, others = self._numbers(), other._numbers()
        return (
            self.batched == other.batched
            and len(mine) == len(others)
            and bool(self.bases) == bool(other.bases)
            and all(map(_same, mine, others))
        )

    def _numbers(self) -> list[Tensor]:
        found = [] if self.S is None else [*parts(self.S)]
        return [*found, *(t for b in self.bases for t in (b.vectors, b.importance))]


def shared(given: Iterable[OldInputs]) -> list[OldInputs]:
    """Return the same inputs, with one object for all that are equal.

    The projections of query, key and value in self-attention read one input. They then need one S
    and one M instead of three.
    """
    found: list[OldInputs] = []
    for old in given:
        found.append(next((each for each in found if old.known and each.equals(old)), old))
    return found


def _same(one: Tensor, other: Tensor) -> bool:
    if one is other:
        return True
    if (one.shape, one.dtype, one.device) != (other.shape, other.dtype, other.device):
        return False
    return torch.equal(one, other)
