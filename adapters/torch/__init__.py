"""Gradient projection inside any torch training loop."""

from gradproj.adapters.torch.functional import project_gradients
from gradproj.adapters.torch.layers import group_parameters
from gradproj.adapters.torch.memory import EpisodicMemory
from gradproj.adapters.torch.projector import Projector

__all__ = ["EpisodicMemory", "Projector", "group_parameters", "project_gradients"]
