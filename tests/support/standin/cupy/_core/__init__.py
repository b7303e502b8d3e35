"""The two functions of `cupy._core` that say how products are formed."""

from cupy._core._routines_linalg import get_compute_type, set_compute_type

__all__ = ["get_compute_type", "set_compute_type"]
