"""Helpers of several test modules: array libraries, degenerate matrices, named assertions."""
