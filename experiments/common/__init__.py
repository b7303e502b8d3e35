"""Foundations of all packages: errors, checked values, names, seeds and files."""
