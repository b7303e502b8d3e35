"""`gradproj.experiments` names what most people need, and loads it on first use."""

import subprocess
import sys

import pytest

from gradproj import experiments


@pytest.mark.parametrize("name", experiments.__all__)
def test_a_name_is_the_one_of_its_module(name):
    value = getattr(experiments, name)
    assert value.__module__.startswith("gradproj.experiments.")
    assert name in dir(experiments)


def test_the_list_is_that_of_the_homes():
    assert sorted(experiments.__all__) == sorted(experiments._HOMES)


def test_an_unknown_name_is_not_an_attribute():
    with pytest.raises(AttributeError, match="has no attribute 'Learner2'"):
        experiments.Learner2  # noqa: B018


def test_importing_it_loads_no_torch():
    code = "import sys, gradproj.experiments; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
