"""Two pretended devices, and the current one of each thread."""

from __future__ import annotations

import threading

_COUNT = 2
_thread = threading.local()


class CUDARuntimeError(RuntimeError):
    pass


def getDeviceCount() -> int:
    return _COUNT


def getDevice() -> int:
    return getattr(_thread, "device", 0)


def setDevice(device: int) -> None:
    if not 0 <= device < _COUNT:
        raise CUDARuntimeError("cudaErrorInvalidDevice: invalid device ordinal")
    _thread.device = device
