"""CPU time of competing functions, measured in turns so that noise hits all of them alike."""

from __future__ import annotations

import os

# One thread, before any library starts its pool.
for _variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_variable] = "1"

import time  # noqa: E402
from collections.abc import Callable  # noqa: E402
from statistics import median  # noqa: E402
from typing import Any  # noqa: E402


def cpu_seconds(functions: dict[str, Callable[[], Any]], seconds: float = 1.0) -> dict[str, float]:
    """Return the median CPU time of each function; all are called in turns for about `seconds`."""
    times: dict[str, list[float]] = {name: [] for name in functions}
    for function in functions.values():
        function()
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(next(iter(times.values()))) < 5:
        for name, function in functions.items():
            start = time.process_time()
            function()
            times[name].append(time.process_time() - start)
    return {name: median(values) for name, values in times.items()}
