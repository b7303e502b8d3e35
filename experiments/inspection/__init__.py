"""Measurements of the gradients of old and new tasks, layer by layer."""
