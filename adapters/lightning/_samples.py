"""Batches of any common form as tuples of tensors, which a memory can store, and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

# Names of the entries of a dict, "sequence" or "tensor". A checkpoint can hold all of these.
Form = list[str] | str


def take_apart(batch: Any) -> tuple[Form, tuple[Tensor, ...]]:
    """Return the form of a batch and its tensors."""
    form: Form
    if isinstance(batch, Tensor):
        form, parts = "tensor", {"batch": batch}
    elif isinstance(batch, Mapping):
        form = list(batch)
        parts = {f"batch[{name!r}]": value for name, value in batch.items()}
    elif isinstance(batch, Sequence) and not isinstance(batch, str):
        form, parts = "sequence", {f"batch[{i}]": value for i, value in enumerate(batch)}
    else:
        form, parts = "", {"batch": batch}
    for name, value in parts.items():
        if not isinstance(value, Tensor):
            raise TypeError(
                f"{name} of the training data loader is a {type(value).__name__}; stored samples "
                "are tensors, so let the loader return a tensor, or a tuple or dict of tensors"
            )
    return form, tuple(parts.values())


def put_together(form: Form, tensors: Sequence[Tensor]) -> Any:
    """Return a batch of this form."""
    if form == "tensor":
        return tensors[0]
    if form == "sequence":
        return list(tensors)
    return dict(zip(form, tensors, strict=True))
