"""Continual learning with the Trainer of PyTorch Lightning.

- :class:`ProjectCallback` projects each step against stored samples of old tasks.
- :class:`PreserveCallback` keeps the answers to old inputs without stored samples.

Each call of ``trainer.fit`` is one task. Install it with ``pip install gradproj[lightning]``.
"""

try:
    from gradproj.adapters.lightning.preserve import PreserveCallback
    from gradproj.adapters.lightning.project import ProjectCallback
except ModuleNotFoundError as error:
    missing = (error.name or "").partition(".")[0]
    if missing != "lightning":
        raise
    raise ModuleNotFoundError(
        f"gradproj.adapters.lightning needs {missing}: pip install gradproj[lightning]",
        name=missing,
    ) from error

__all__ = ["PreserveCallback", "ProjectCallback"]
