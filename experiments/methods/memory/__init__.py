"""Memories of old tasks: exemplars, their features, and random parts of a buffer."""
