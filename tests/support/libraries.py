"""Training libraries that tests need and that may not be installed."""

import contextlib
import importlib
import warnings
from types import ModuleType

import pytest


def need(name: str) -> ModuleType:
    """Import a library, or skip the module's tests with the reason."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the libraries' own imports
        _prepare_torchvision()
        try:
            return importlib.import_module(name)
        except ImportError as error:
            extra = name.partition(".")[0]
            pytest.skip(
                f"{error}: install gradproj[{extra}] to run these tests", allow_module_level=True
            )


def _prepare_torchvision() -> None:
    """Import torchvision if it is there, because the libraries fail where its operators do."""
    pytest.importorskip("torch", reason="torch is not installed")
    with contextlib.suppress(ImportError):
        importlib.import_module("gradproj.experiments.common.torchvision").import_torchvision()
