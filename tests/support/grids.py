"""Jobs that die, for tests of the grid."""

import os
import signal
import struct
import sys


class Crash:
    """In place of a configuration: kills its process as soon as a run looks at it."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        os.kill(os.getpid(), signal.SIGKILL)


class CrashInAWord(Crash):
    """The same, while it tells something: its message is announced and not sent whole."""

    def __getattr__(self, name):
        frame = sys._getframe()
        while frame is not None and "told" not in frame.f_locals:
            frame = frame.f_back
        if frame is not None:
            os.write(frame.f_locals["told"].fileno(), struct.pack("!i", 100) + b"cut")
        return super().__getattr__(name)


class CrashOnce:
    """In place of a configuration: kills its process the first time, and is the real one later."""

    def __init__(self, config, mark):
        self.config, self.mark = config, mark

    def __getattr__(self, name):
        if name.startswith("__") or name in ("config", "mark"):
            raise AttributeError(name)
        if not self.mark.exists():
            self.mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return getattr(self.config, name)


class Abort(Crash):
    """Ends its process with a message, as a library does that calls abort()."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        os.write(2, b"the library gave up\n")
        os._exit(7)
