"""Projection without stored samples: preserve the layers' outputs for the old tasks' inputs."""
