"""Marks on tensors that hold an update, so that it is not taken for a new gradient."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor, nn

# Set on each tensor that holds an update, to the number of writes it had seen by then.
_MARK = "_gradproj_update"


def mark_updates(parameters: Iterable[nn.Parameter]) -> None:
    """Mark every `.grad` as an update."""
    for p in parameters:
        if p.grad is not None:
            setattr(p.grad, _MARK, p.grad._version)


def was_update(grad: Tensor | None) -> bool:
    """Return whether a tensor has held an update, even if it was changed since."""
    return hasattr(grad, _MARK)


def refuse_updates(parameters: Iterable[nn.Parameter]) -> None:
    """Raise if `.grad` is still the update of an earlier step, of any projector."""
    for p in parameters:
        if p.grad is not None and getattr(p.grad, _MARK, None) == p.grad._version:
            raise RuntimeError(
                ".grad is still the update of an earlier projected step, of this projector or of "
                "another one on the same model; call zero_grad() and run the task's loss backward "
                "before store()"
            )
