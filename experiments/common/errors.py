"""Exceptions that the command line shows as one line, without a traceback."""

from __future__ import annotations

__all__ = ["ConfigError", "DataError", "RunError"]


class RunError(ValueError):
    """A run that cannot start or continue; the message says what to do."""


class DataError(OSError):
    """A data set is missing, damaged or cannot be stored; the message says what to do."""


class ConfigError(ValueError):
    """A configuration that cannot be used; the message names the key and how to fix it."""
