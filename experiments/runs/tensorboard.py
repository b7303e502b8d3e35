"""Loss and accuracy of a run for TensorBoard."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from gradproj.experiments.common.errors import RunError
from gradproj.experiments.runs.events import ENDINGS, Event

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

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
        # The first event has the step at which the run starts or resumes. Values that an earlier
        # process wrote for later steps are dropped.
        self._open = partial(SummaryWriter, str(folder / "tensorboard"))
        self._writer: SummaryWriter | None = None

    def __call__(self, event: Event) -> None:
        """Write the loss of a step or the accuracy after a task; close the files at the end."""
        if event.kind == "step":
            self._scalar("loss", float(event.loss), event.step)
        elif event.kind == "task":
            self._scalar("accuracy", event.accuracy, event.step)
        elif event.kind in ENDINGS and self._writer is not None:
            self._writer.close()

    def _scalar(self, name: str, value: float, step: int) -> None:
        if self._writer is None:
            self._writer = self._open(purge_step=step)
        self._writer.add_scalar(name, value, step)
