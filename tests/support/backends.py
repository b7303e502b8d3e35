"""The array libraries that the core is tested on, each behind the same four names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import array_api_compat
import array_api_strict
import numpy as np
import pytest

from support import devices


@dataclass(frozen=True)
class Backend:
    """How to make an array of a library from NumPy's, how to read it, and how to name it."""

    name: str
    array: Callable[[np.ndarray], Any]
    numpy: Callable[[Any], np.ndarray]
    device: Callable[[Any], Any] = lambda x: getattr(x, "device", None)

    def __repr__(self) -> str:
        return self.name


def _readonly(x: np.ndarray) -> np.ndarray:
    copy = np.array(x)
    copy.flags.writeable = False
    return copy


def _strict(device: str) -> Backend:
    place = array_api_strict.Device(device)
    host = array_api_strict.Device("CPU_DEVICE")
    return Backend(
        f"strict-{device}",
        lambda x: array_api_strict.asarray(x, device=place),
        lambda x: np.asarray(x.to_device(host)),
    )


def _torch() -> Any:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    return Backend("torch", lambda x: torch.tensor(x), lambda x: x.numpy())


def _cupy() -> Backend:
    if devices.uses_standin():
        pytest.skip("CuPy is not installed, or no CUDA device answers")
    cupy = pytest.importorskip("cupy", reason="CuPy is not installed")
    return Backend("cupy", cupy.asarray, cupy.asnumpy)


def _cupy_standin(device: int) -> Backend:
    """Arrays of the stand-in on a device. Device 0 is current, so device 1 must be entered."""
    if not devices.uses_standin():
        pytest.skip("CuPy itself runs here")
    import cupy

    def array(x: np.ndarray) -> Any:
        with cupy.cuda.Device(device):
            return cupy.asarray(x)

    name = "cupy-standin-device1" if device else "cupy-standin"
    return Backend(name, array, cupy.asnumpy)


def _dpnp() -> Backend:
    dpnp = pytest.importorskip("dpnp", reason="dpnp is not installed")
    try:
        dpnp.zeros(1)
    except Exception as error:
        pytest.skip(f"dpnp has no device: {error}")
    return Backend("dpnp", dpnp.asarray, dpnp.asnumpy)


_MAKERS: dict[str, Callable[[], Backend]] = {
    "numpy": lambda: Backend("numpy", np.array, np.asarray),
    "numpy-readonly": lambda: Backend("numpy-readonly", _readonly, np.asarray),
    "strict": lambda: _strict("CPU_DEVICE"),
    "strict-device1": lambda: _strict("device1"),
    "torch": _torch,
    "cupy": _cupy,
    "cupy-standin": lambda: _cupy_standin(0),
    "cupy-standin-device1": lambda: _cupy_standin(1),
    "dpnp": _dpnp,
}


def get(name: str) -> Backend:
    """Return the backend, or skip the test with the reason why it cannot run here."""
    return _MAKERS[name]()


def assert_alike(result: Any, like: Any) -> None:
    """The result has the type, dtype and device of an array."""
    assert type(result) is type(like)
    assert result.dtype == like.dtype
    assert array_api_compat.device(result) == array_api_compat.device(like)


every_backend = pytest.mark.parametrize(
    "library",
    [pytest.param(name, marks=pytest.mark.gpu if name == "cupy" else ()) for name in _MAKERS],
)
