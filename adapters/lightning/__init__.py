"""Continual learning with the Trainer of PyTorch Lightning.

- :class:`ProjectCallback` projects each step against stored samples of old tasks.
- :class:`PreserveCallback` keeps the answers to old inputs without stored samples.

Each call of ``trainer.fit`` is one task. Install it with ``pip install gradproj[lightning]``.
"""

from gradproj.adapters.lightning.preserve import PreserveCallback
from gradproj.adapters.lightning.project import ProjectCallback

__all__ = ["PreserveCallback", "ProjectCallback"]
