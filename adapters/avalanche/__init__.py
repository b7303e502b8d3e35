"""Continual learning with the strategies of Avalanche.

- :class:`ProjectPlugin` projects each step against stored samples of old experiences.
- :class:`PreservePlugin` keeps the answers to old inputs without stored samples.

Each training experience is one task. Install it with ``pip install gradproj[avalanche]``.
"""

try:
    from gradproj.adapters.avalanche.preserve import PreservePlugin
    from gradproj.adapters.avalanche.project import ProjectPlugin
except ModuleNotFoundError as error:
    missing = (error.name or "").partition(".")[0]
    if missing != "avalanche":
        raise
    raise ModuleNotFoundError(
        f"gradproj.adapters.avalanche needs {missing}: pip install gradproj[avalanche]",
        name=missing,
    ) from error

__all__ = ["PreservePlugin", "ProjectPlugin"]
