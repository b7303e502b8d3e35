"""Methods and models that run uncompiled, whatever surrounds them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import torch

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def eager(method: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Run a method uncompiled inside `torch.compile`, which cannot trace backward calls.

    `torch.compiler.disable` does the same, but imports the compiler, which takes two seconds. Here
    the compiler is left alone until the user has imported it.
    """
    disabled: list[Callable[Arguments, Result]] = []

    @wraps(method)
    def run(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        if "torch._dynamo" not in sys.modules:
            return method(*args, **kwargs)
        if not disabled:
            disabled.append(torch.compiler.disable(method))  # type: ignore[no-untyped-call]
        return disabled[0](*args, **kwargs)

    # torch.compile reads these attributes, and shows the sentence for fullgraph=True.
    run._torchdynamo_disable = True  # type: ignore[attr-defined]
    run._torchdynamo_disable_msg = (  # type: ignore[attr-defined]
        "a projected step runs uncompiled; compile the model or the loss instead of the step, or "
        "use fullgraph=False"
    )
    return run


def uncompiled() -> AbstractContextManager[Any]:
    """Run compiled models as they were written: compiled code may not notice new hooks."""
    if "torch._dynamo" not in sys.modules:
        return nullcontext()
    found: AbstractContextManager[Any] = torch.compiler.set_stance("force_eager")
    return found
