"""Gradient projection for continual learning."""
