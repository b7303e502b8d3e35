"""Tests with published data sets, which run only where these are stored."""

import os

import pytest

from gradproj.experiments.data import SOURCES, data_dir


def need(name):
    """Skip a test that needs real data where GRADPROJ_DATA does not provide it."""
    if "GRADPROJ_DATA" not in os.environ:
        pytest.skip("GRADPROJ_DATA does not name a folder with the data")
    if missing := SOURCES[name].missing(data_dir()):
        pytest.skip(f"{name} is not in GRADPROJ_DATA: no {missing[0]}")
