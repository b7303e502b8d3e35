"""A run in a process of its own that is killed, for real, at a chosen step."""

import os
import signal
from pathlib import Path

import torch

from gradproj.experiments.runs.resolve import resolve
from gradproj.experiments.runs.runner import run


def run_until(values, folder, step, checkpoint_seconds, number=signal.SIGKILL):
    """Run or resume, and send this process a signal once the run has made `step` steps."""
    torch.set_num_threads(1)

    def listen(event):
        if event.kind == "step" and event.step >= step:
            os.kill(os.getpid(), number)

    run(
        resolve(values),
        Path(folder),
        resume=True,
        checkpoint_seconds=checkpoint_seconds,
        report=listen,
    )
