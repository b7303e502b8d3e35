"""Continual learning with the Trainer of Hugging Face transformers.

- :class:`ProjectedTrainer` projects each step against stored samples of old tasks.
- :class:`PreserveCallback` keeps what a model answers to old inputs, without stored samples.
- :class:`DictMemory` stores samples that are dicts of tensors, as data collators make them.

Install it with ``pip install gradproj[transformers]``.
"""

try:
    from gradproj.adapters.transformers.callback import PreserveCallback
    from gradproj.adapters.transformers.memory import DictMemory
    from gradproj.adapters.transformers.trainer import ProjectedTrainer
except ModuleNotFoundError as error:
    missing = (error.name or "").partition(".")[0]
    if missing not in ("transformers", "accelerate"):
        raise
    raise ModuleNotFoundError(
        f"gradproj.adapters.transformers needs {missing}: pip install gradproj[transformers]",
        name=missing,
    ) from error

__all__ = ["DictMemory", "PreserveCallback", "ProjectedTrainer"]
