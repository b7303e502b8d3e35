"""The registry of methods, which finds every learner in this package."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Mapping
from dataclasses import is_dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType, ModuleType

from gradproj.experiments.common.errors import ConfigError
from gradproj.experiments.common.registry import is_own, load_object, lookup
from gradproj.experiments.methods.learner import Learner

__all__ = ["available", "find"]


@cache
def available() -> Mapping[str, type[Learner]]:
    """Map each method's name to its class.

    Examples
    --------
    >>> "gem" in available()
    True
    """
    found: dict[str, type[Learner]] = {}
    for info in pkgutil.walk_packages([str(Path(__file__).parent)], f"{__package__}."):
        if info.ispkg or info.name.rpartition(".")[2].startswith("_"):
            continue
        for learner in _learners(importlib.import_module(info.name)):
            if learner.name in found:
                raise ImportError(f"method name '{learner.name}' is used twice: see {info.name}")
            found[learner.name] = learner
    return MappingProxyType(dict(sorted(found.items())))


def find(name: str) -> type[Learner]:
    """Return the method called `name`, or a user-defined one, named as `module:class`."""
    if is_own(name):
        return _own(name)
    return lookup(name, available(), "method")


def _own(path: str) -> type[Learner]:
    try:
        found = load_object(path, "method")
    except ValueError as error:
        raise ConfigError(str(error)) from error
    if not (inspect.isclass(found) and issubclass(found, Learner)):
        raise ConfigError(
            f"method {path!r} is not a subclass of gradproj.experiments.Learner; derive it from one"
        )
    if not is_dataclass(found.Options):
        raise ConfigError(
            f"method {path!r}: Options must be a dataclass; decorate it with "
            "@dataclass(frozen=True)"
        )
    return found


def _learners(module: ModuleType) -> list[type[Learner]]:
    return [
        value
        for value in vars(module).values()
        if inspect.isclass(value)
        and issubclass(value, Learner)
        and value.__module__ == module.__name__
        and "name" in vars(value)
    ]
