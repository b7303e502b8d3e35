"""Loss and accuracy of a run for TensorBoard."""

from __future__ import annotations

from pathlib import Path

from gradproj.experiments.progress import Event
from gradproj.experiments.storage import RunError

__all__ = ["TensorBoard"]


class TensorBoard:
    """A listener of a run that writes TensorBoard files to its folder."""

    def __init__(self, folder: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise RunError(
                "tensorboard is not installed; pip install 'gradproj[tensorboard]'"
            ) from error
        self._writer = SummaryWriter(str(folder / "tensorboard"))

    def __call__(self, event: Event) -> None:
        """Write what the event holds."""
        if event.kind == "step":
            self._scalar("loss", float(event.loss), event.step)
        elif event.kind == "task":
            self._scalar("accuracy", event.accuracy, event.step)
        else:
            self._writer.close()

    def _scalar(self, name: str, value: float, step: int) -> None:
        self._writer.add_scalar(name, value, step)
