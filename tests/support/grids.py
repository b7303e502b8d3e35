"""Jobs that die, for tests of the grid."""

import os
import signal
import struct
import sys
from dataclasses import dataclass
from pathlib import Path

from gradproj.experiments.methods.bounds.single import Single


class Crash:
    """Used as a configuration: kills its process when a run reads an attribute."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        os.kill(os.getpid(), signal.SIGKILL)


class CrashInAWord(Crash):
    """The same, while it sends a message: its length is sent, and only a part of the content."""

    def __getattr__(self, name):
        frame = sys._getframe()
        while frame is not None and "sender" not in frame.f_locals:
            frame = frame.f_back
        if frame is not None:
            os.write(frame.f_locals["sender"].fileno(), struct.pack("!i", 100) + b"cut")
        return super().__getattr__(name)


@dataclass(frozen=True)
class Options:
    """When it dies: at `step`, by the signal `number`, unless the file `mark` exists."""

    mark: str = ""
    number: int = int(signal.SIGKILL)
    step: int = 4


class DiesOnce(Single):
    """Fine-tuning that kills its own process once, at a step in the middle."""

    name = "dies-once"
    Options = Options
    step = 0

    def observe(self, *args, **kwargs):
        self.step += 1
        if self.step == self.options.step and not Path(self.options.mark).exists():
            Path(self.options.mark).touch()
            os.kill(os.getpid(), self.options.number)
        return super().observe(*args, **kwargs)


class Abort(Crash):
    """Ends its process with a message, as a library does that calls abort()."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        os.write(2, b"the library gave up\n")
        os._exit(7)
