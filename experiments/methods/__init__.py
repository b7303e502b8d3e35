"""The methods, in packages by mechanism; a new file in one of them is a new method."""

from gradproj.experiments.methods.registry import available, find

__all__ = ["available", "find"]
