"""Continual learning with the Trainer of Hugging Face transformers.

- :class:`ProjectedTrainer` projects each step against stored samples of old tasks.
- :class:`PreserveCallback` keeps what a model answers to old inputs, without stored samples.
- :class:`DictMemory` stores samples that are dicts of tensors, as data collators make them.

Install it with ``pip install gradproj[transformers]``.
"""

from gradproj.adapters.transformers.callback import PreserveCallback
from gradproj.adapters.transformers.memory import DictMemory
from gradproj.adapters.transformers.trainer import ProjectedTrainer

__all__ = ["DictMemory", "PreserveCallback", "ProjectedTrainer"]
