"""The device: compared by its number, not hashable, a context that makes it current."""

from __future__ import annotations

from functools import total_ordering
from typing import Any

from cupy.cuda import runtime


@total_ordering
class Device:
    def __init__(self, device: Any = None) -> None:
        self.id = runtime.getDevice() if device is None else int(device)
        self._outer: list[int] = []

    def __int__(self) -> int:
        return self.id

    def __eq__(self, other: object) -> bool:
        return self.id == other.id if isinstance(other, Device) else NotImplemented

    def __lt__(self, other: object) -> bool:
        return self.id < other.id if isinstance(other, Device) else NotImplemented

    __hash__ = None

    def __enter__(self) -> Device:
        outer = runtime.getDevice()
        self.use()
        self._outer.append(outer)
        return self

    def __exit__(self, *error: object) -> None:
        runtime.setDevice(self._outer.pop())

    def __repr__(self) -> str:
        return f"<CUDA Device {self.id}>"

    def use(self) -> None:
        runtime.setDevice(self.id)

    def synchronize(self) -> None:
        pass
