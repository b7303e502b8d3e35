"""One method of each kind, for tests that hold for all of them."""

import pytest

import gradproj as gp

METHODS = [gp.Decomposed(), gp.Decomposed(rank=1), gp.Decomposed(rank=0), gp.GEM(), gp.AGEM()]
every_method = pytest.mark.parametrize("method", METHODS, ids=repr)
