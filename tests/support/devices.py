"""The devices of this machine: which of them answer, and which ones the tests stand in for."""

from __future__ import annotations

import ctypes
import os
import sys
from importlib.util import find_spec
from pathlib import Path

STANDIN = Path(__file__).parent / "standin"


def has_cuda() -> bool:
    """Whether the CUDA driver finds a device. Asking CuPy would import it."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    count = ctypes.c_int(0)
    return driver.cuInit(0) == driver.cuDeviceGetCount(ctypes.byref(count)) == 0 < count.value


def uses_standin() -> bool:
    """Whether `import cupy` finds the stand-in."""
    return str(STANDIN) in sys.path


def use_standin_without_cuda() -> None:
    """Have `import cupy` find the stand-in, unless there are CuPy and a device for it."""
    if not uses_standin() and not (has_cuda() and find_spec("cupy")):
        sys.path.insert(0, str(STANDIN))


def find_opencl_of_environment() -> None:
    """Tell dpnp's runtime of the OpenCL device for CPUs that pip installs beside it.

    The runtime reads the variable when it is loaded. Without it, dpnp has no default device.
    """
    library = Path(sys.prefix) / "lib" / "libintelocl.so"
    if library.exists():
        os.environ.setdefault("OCL_ICD_FILENAMES", str(library))
