"""The option `--library`: run tests that are written for NumPy on another library's arrays."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from typing import Any

import numpy as np
import pytest
from support import backends

import gradproj as gp

combine = gp.combine
FUNCTIONS = (
    "combine",
    "combine_layers",
    "decompose",
    "gram_schmidt",
    "kkt_residuals",
    "measure",
    "measure_layers",
    "principal_components",
    "project",
    "project_layers",
    "solve",
)


@pytest.fixture(autouse=True)
def other_library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the public functions by ones that compute with arrays of the chosen library."""
    name = request.config.getoption("--library")
    if name is None:
        return
    if "library" in request.fixturenames or request.node.get_closest_marker("numpy_only"):
        pytest.skip("this test chooses its library itself")
    backend = backends.get(name)
    for function in FUNCTIONS:
        monkeypatch.setattr(gp, function, elsewhere(getattr(gp, function), backend))


def elsewhere(function: Callable[..., Any], backend: backends.Backend) -> Callable[..., Any]:
    """Return the function with its gradients moved to the library, and its results moved back."""

    @functools.wraps(function)
    def run(*arguments: Any, **options: Any) -> Any:
        # Every argument by position is a gradient, a list of them or a method, except combine's
        # coefficients, which stay on the host.
        moved = [to_library(x, backend) for x in arguments[: 2 if function is combine else None]]
        if all(x is y for x, y in zip(moved, arguments, strict=False)):
            return function(*arguments, **options)  # the test has arrays of its own
        return to_numpy(function(*moved, *arguments[len(moved) :], **options), backend)

    return run


def to_library(x: Any, backend: backends.Backend) -> Any:
    """Move NumPy arrays of real numbers; leave other arguments as they are."""
    if isinstance(x, list) and x:
        moved = [to_library(part, backend) for part in x]
        return x if all(a is b for a, b in zip(x, moved, strict=True)) else moved
    if type(x) is np.ndarray and x.dtype.kind == "f" and x.dtype.isnative and x.itemsize <= 8:
        return backend.array(x)
    return x


def to_numpy(x: Any, backend: backends.Backend) -> Any:
    """Move arrays back, wherever they are in a result."""
    if isinstance(x, np.ndarray | np.generic | float | int | bool):
        return x
    if isinstance(x, tuple | list):
        return type(x)(to_numpy(part, backend) for part in x)
    if is_dataclass(x):
        return replace(x, **{f.name: to_numpy(getattr(x, f.name), backend) for f in fields(x)})
    return backend.numpy(x)
