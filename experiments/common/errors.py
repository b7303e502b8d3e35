"""Exceptions with a message for the user, and no traceback."""

from __future__ import annotations

__all__ = ["RunError"]


class RunError(ValueError):
    """A run that cannot start or continue; the message says what to do."""
