"""Names: unknown ones, and those of a person's own objects, `module:object`."""

from __future__ import annotations

import difflib
import importlib
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from gradproj.experiments.common.errors import ConfigError

__all__ = ["find", "is_own", "load_object", "lookup", "nearest"]

T = TypeVar("T")


def is_own(name: str) -> bool:
    """Return whether a name is that of a user-defined object.

    Examples
    --------
    >>> is_own("mine:Method"), is_own("gem")
    (True, False)
    """
    return ":" in name


def load_object(path: str, argument: str) -> Any:
    """Import `module:object`; modules in the current folder are found too, from then on.

    It runs that module's code, so it is for names that a person typed, not for names read from
    files of unknown origin.

    Examples
    --------
    >>> load_object("math:pi", "--constant")
    3.141592653589793
    """
    module, _, name = path.partition(":")
    if module.startswith("."):
        raise ValueError(
            f"{argument} {path!r} cannot be loaded: {module!r} is not the name of a module; write "
            "module:object, with the module installed or in this folder"
        )
    folder = str(Path.cwd())
    # It stays there: that code may import more while it runs, and processes that are started
    # later receive the path before they receive its objects.
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(
            f"{argument} {path!r} cannot be loaded: {error}; write module:object, with the "
            "module installed or in this folder"
        ) from error


def nearest(word: str, known: Iterable[str], what: str) -> str:
    """Say that `word` is not a known `what`, and which one was probably meant.

    Examples
    --------
    >>> nearest("epoch", ["epochs", "lr"], "key")
    "key 'epoch' is not known; did you mean 'epochs'?"
    """
    choices = sorted(known)
    close = difflib.get_close_matches(word, choices, n=1, cutoff=0.5)
    cure = (
        f"did you mean '{close[0]}'?" if close else f"use one of {', '.join(choices) or '(none)'}"
    )
    return f"{what} '{word}' is not known; {cure}"


def lookup(
    name: str, known: Mapping[str, T], what: str, *, also: Iterable[str] = (), hint: str = ""
) -> T:
    """Return the entry of a table; the error for an unknown name suggests the nearest one.

    `also` are names that may have been meant and are not in the table; `hint` follows the message.

    Examples
    --------
    >>> lookup("gme", {"gem": 1, "ours": 2}, "method")
    Traceback (most recent call last):
        ...
    gradproj.experiments.common.errors.ConfigError: method 'gme' is not known; did you mean 'gem'?
    """
    if name not in known:
        raise ConfigError(" ".join([nearest(name, [*known, *also], what), hint]).rstrip())
    return known[name]


def find(name: str, known: Mapping[str, T], what: str) -> T:
    """Return what a table holds under `name`, or a person's own object, named `module:object`."""
    if is_own(name):
        own: T = load_object(name, what)
        return own
    return lookup(name, known, what)
