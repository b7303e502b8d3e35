"""Streams of tasks, and the benchmarks that are made of them."""

from gradproj.experiments.streams.builders import permuted, rotated, split
from gradproj.experiments.streams.stream import Scenario, Stream, Task

__all__ = ["Scenario", "Stream", "Task", "permuted", "rotated", "split"]
