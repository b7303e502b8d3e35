"""The part of `cupy.cuda` that the core and the adapter use."""

from cupy.cuda import device, runtime, stream
from cupy.cuda.device import Device
from cupy.cuda.stream import ExternalStream, Stream, get_current_stream

__all__ = [
    "Device",
    "ExternalStream",
    "Stream",
    "device",
    "get_current_stream",
    "runtime",
    "stream",
]
