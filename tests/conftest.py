"""Settings of the whole suite."""

import os

import pytest
from hypothesis import HealthCheck, settings
from support import devices

# Before anything imports CuPy or dpnp.
devices.use_standin_without_cuda()
devices.find_opencl_of_environment()

# The quick profile is for every run; `make test-deep` asks for the deep one, which is more than
# 100,000 cases over all properties. A failure prints a line that reproduces it.
_common = {
    "deadline": None,
    "suppress_health_check": [HealthCheck.too_slow, HealthCheck.filter_too_much],
}
settings.register_profile("quick", max_examples=20, derandomize=True, **_common)
settings.register_profile("deep", max_examples=2500, print_blob=True, **_common)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--library", help="run tests/core on arrays of this library, for example cupy-standin"
    )
