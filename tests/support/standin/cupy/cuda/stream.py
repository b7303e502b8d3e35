"""Streams: which one is current is kept per thread and device. Nothing runs asynchronously."""

from __future__ import annotations

import itertools
import threading
import warnings
from typing import Any

from cupy.cuda import runtime

_thread = threading.local()
_pointers = itertools.count(1000)


class _BaseStream:
    def __init__(self, ptr: int, device_id: int) -> None:
        self.ptr = ptr
        self.device_id = device_id

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _BaseStream) and self.ptr == other.ptr

    def __hash__(self) -> int:
        return self.ptr

    def __enter__(self) -> Any:
        current = runtime.getDevice()
        if self.device_id not in (-1, current):
            raise RuntimeError(
                f"The device that the stream is created on ({self.device_id}) does not match "
                f"with the current device ({current})"
            )
        _entered().append((current, self))
        return self

    def __exit__(self, *error: object) -> None:
        _entered().pop()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.ptr} (device {self.device_id})>"

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.ptr

    def synchronize(self) -> None:
        pass


class Stream(_BaseStream):
    null: Stream

    def __init__(self, null: bool = False, non_blocking: bool = False) -> None:
        del non_blocking
        super().__init__(*((0, -1) if null else (next(_pointers), runtime.getDevice())))

    @classmethod
    def from_external(cls, obj: Any) -> Stream:
        made = cls(null=True)
        made.ptr = obj.__cuda_stream__()[1]
        return made


class ExternalStream(_BaseStream):
    def __init__(self, ptr: int, device_id: int = -1) -> None:
        warnings.warn(
            "ExternalStream is deprecated. Use Stream.from_external() instead to interoperate "
            "with external streams that implement the CUDA stream protocol.",
            DeprecationWarning,
            stacklevel=2,
        )
        super().__init__(ptr, device_id)


Stream.null = Stream(null=True)


def get_current_stream(device_id: int = -1) -> Any:
    device_id = runtime.getDevice() if device_id == -1 else device_id
    return next((s for place, s in reversed(_entered()) if place == device_id), Stream.null)


def _entered() -> list[tuple[int, Any]]:
    if not hasattr(_thread, "entered"):
        _thread.entered = []
    return _thread.entered
