"""CuPy's work on torch's stream, on the stand-in for CuPy (see tests/support/standin)."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from support import devices

import gradproj as gp
from gradproj.adapters.torch._backends import on_torch_stream

pytestmark = pytest.mark.skipif(not devices.uses_standin(), reason="a CUDA device answers")


class Add(gp.Method):
    """Adds every old gradient to the new one."""

    def solve_layers(self, products):
        return gp.Solution(np.ones_like(products.h))


@pytest.mark.parametrize("number", [0, 1])
def test_cupy_works_on_the_stream_that_torch_has_chosen(monkeypatch, number):
    import cupy

    chosen = SimpleNamespace(device_index=number, __cuda_stream__=lambda: (0, 4321))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: chosen)
    with cupy.cuda.Device(number):
        g, G = cupy.asarray(np.ones(5)), cupy.asarray(-np.ones((2, 5)))
    with on_torch_stream("cupy", torch.device("cuda", number)):
        assert cupy.cuda.get_current_stream(number).ptr == 4321
        products = gp.measure_layers([g], [G])
        gp.combine_layers([g], [G], Add().solve(products), out=[g])
        assert cupy.cuda.get_current_stream(number).ptr == 4321
    assert cupy.cuda.get_current_stream(number).ptr == 0
    assert cupy.cuda.Device().id == 0
    assert g.get().tolist() == [-1.0] * 5


def test_other_libraries_need_no_stream():
    with (
        on_torch_stream("numpy", torch.device("cpu")),
        on_torch_stream("torch", torch.device("cpu")),
    ):
        pass
