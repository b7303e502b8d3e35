"""Import torchvision beside a CPU build of torch.

torchvision wheels built for CUDA cannot load their compiled operators beside a CPU torch, and the
import stops at ``operator torchvision::nms does not exist``. Data sets, models and transforms do
not use these operators, so declaring the missing ones is sufficient.
"""

import importlib
import sys
from types import ModuleType

import torch

__all__ = ["import_torchvision"]

_SIGNATURE = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
# The operators are removed when their library is garbage-collected, so keep a reference.
_library: torch.library.Library | None = None


def import_torchvision(part: str = "") -> ModuleType:
    """Import torchvision, or one part of it, declaring missing operators only if it fails.

    Parameters
    ----------
    part : str
        A submodule such as "datasets" or "models"; empty for torchvision itself.

    Returns
    -------
    module
        The imported module.

    Examples
    --------
    >>> import_torchvision("models").__name__
    'torchvision.models'
    """
    name = f"torchvision.{part}" if part else "torchvision"
    try:
        return importlib.import_module(name)
    except RuntimeError as error:
        if "torchvision::nms" not in str(error):
            raise
    _declare_operators()
    # The second import must not find the half-initialised modules of the failed one.
    for module in [m for m in sys.modules if m.partition(".")[0] == "torchvision"]:
        del sys.modules[module]
    return importlib.import_module(name)


def _declare_operators() -> None:
    global _library
    _library = torch.library.Library("torchvision", "DEF")  # type: ignore[no-untyped-call]
    for operator in ("nms", "qnms"):
        _library.define(operator + _SIGNATURE)  # type: ignore[no-untyped-call]
