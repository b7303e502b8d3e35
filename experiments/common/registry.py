"""Lookup of names in tables, with suggestions, and of user-defined `module:object`."""

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

# More names than this are counted in an error, not listed: there are hundreds of presets.
MANY = 100


def is_own(name: str) -> bool:
    """Return whether a name is that of a user-defined object.

    Examples
    --------
    >>> is_own("mine:Method"), is_own("gem")
    (True, False)
    """
    return ":" in name


def load_object(path: str, argument: str) -> Any:
    """Import `module:object` and return the object.

    The current folder is added to `sys.path`. Importing runs the code of the module, so call this
    only for names that the user typed, never for names that were read from a file.

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
    # The entry stays: that code may import more modules while it runs, and worker processes
    # receive the path before they receive its objects.
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
    """Return the message for an unknown `word`, with the known name that is most similar.

    Examples
    --------
    >>> nearest("epoch", ["epochs", "lr"], "key")
    "key 'epoch' is not known; did you mean 'epochs'?"
    """
    choices = sorted(known)
    close = difflib.get_close_matches(word, choices, n=1, cutoff=0.6)
    if close:
        cure = f"did you mean '{close[0]}'?"
    elif len(choices) > MANY:
        cure = f"use one of the {len(choices)}, such as {choices[0]} (see `gradproj list`)"
    else:
        cure = f"use one of {', '.join(choices) or '(none)'}"
    return f"{what} '{word}' is not known; {cure}"


def lookup(
    name: str, known: Mapping[str, T], what: str, *, also: Iterable[str] = (), hint: str = ""
) -> T:
    """Return the entry of a table; the error for an unknown name suggests the nearest one.

    `also` lists further names to suggest; `hint` is appended to the message.

    Examples
    --------
    >>> lookup("gme", {"gem": 1, "ours": 2}, "method")
    Traceback (most recent call last):
        ...
    gradproj.experiments.common.errors.ConfigError: method 'gme' is not known; did you mean 'gem'?
    """
    if name not in known:
        message = nearest(name, [*known, *also], what)
        end = "" if message.endswith("?") or not hint else "."
        raise ConfigError(f"{message}{end} {hint}".rstrip())
    return known[name]


def find(name: str, known: Mapping[str, T], what: str) -> T:
    """Return the entry of a table, or the user-defined object that `module:object` names."""
    if is_own(name):
        own: T = load_object(name, what)
        return own
    return lookup(name, known, what)
