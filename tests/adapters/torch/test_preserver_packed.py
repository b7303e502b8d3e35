"""The layouts in which a preserver keeps its operator: the same update, copied and reported."""

import copy
import pickle

import pytest
import torch
from preserver_reference import ended
from torch import nn

import gradproj as gp
from gradproj.adapters.torch._preserver import operators, packed
from gradproj.adapters.torch._preserver.packed import Packed, packs

IN = 300

needs_packing = pytest.mark.skipif(
    not packs(torch.eye(IN)), reason="torch has no packed products for this processor"
)


@pytest.fixture
def layer():
    torch.manual_seed(0)
    return nn.Linear(IN, 7, bias=False)


def stepped(layer, **options):
    """A preserver after a task of `layer` and one step, and that step's update."""
    torch.manual_seed(1)
    preserver = ended(layer, torch.randn(50, IN), strength=2.0, **options)
    layer.zero_grad()
    layer(torch.randn(20, IN)).square().sum().backward()
    g = layer.weight.grad.double()
    preserver.apply()
    return preserver, g, layer.weight.grad.double()


def operator_of(preserver):
    (operator,) = preserver._layers[0].old._operators.values()
    return operator


def assert_update(w, g, S):
    """Check the optimality condition w (I + λS) = g."""
    atol = 1e-5 * float(g.abs().max())
    torch.testing.assert_close(w + 2.0 * w @ S.double(), g, rtol=0, atol=atol)


@needs_packing
@pytest.mark.parametrize("rows", [0, 1, 2, 10, 64, 301])
def test_packed_product_is_the_product(rows):
    torch.manual_seed(0)
    M, g = torch.randn(IN, IN), torch.randn(rows, IN)  # not symmetric
    found = Packed(M).apply(g)
    assert found.dtype == torch.float32
    bound = 1e-6 * g.double().abs() @ M.double().abs()
    assert bool(((found.double() - g.double() @ M.double()).abs() <= bound).all())


@needs_packing
def test_wide_layer_uses_a_packed_matrix(layer):
    preserver, g, w = stepped(layer)
    assert isinstance(operator_of(preserver), Packed)
    assert_update(w, g, preserver._layers[0].old.S)


def test_update_is_the_same_where_torch_cannot_pack(layer, monkeypatch):
    monkeypatch.setattr(packed, "_available", lambda: False)
    preserver, g, w = stepped(layer)
    assert isinstance(operator_of(preserver), torch.Tensor)
    assert_update(w, g, preserver._layers[0].old.S)


@pytest.mark.parametrize(
    "matrix",
    [torch.eye(packed._LEAST - 1), torch.eye(IN, dtype=torch.float64), torch.zeros(2, IN, IN)],
    ids=["few inputs", "float64", "groups"],
)
def test_other_matrices_are_not_packed(matrix):
    assert not packs(matrix)


@pytest.mark.parametrize("twin", [copy.deepcopy, lambda p: pickle.loads(pickle.dumps(p))])
def test_copy_makes_the_same_update(layer, twin):
    preserver, _, _ = stepped(layer)
    other = twin(preserver)
    for each in (preserver, other):
        each.model.weight.grad = torch.ones(7, IN)
        each.apply()
    assert torch.equal(preserver.model.weight.grad, other.model.weight.grad)


def test_memory_report_counts_the_operator(layer):
    preserver, _, _ = stepped(layer)
    assert list(preserver.memory.values()) == [2 * 4 * IN * IN]  # S and M


@pytest.mark.parametrize("strength", [0.5, float("inf")])
def test_low_rank_update_is_that_of_the_core(layer, strength):
    preserver, g, _ = stepped(layer, rank=20)
    preserver.strength = strength
    layer.weight.grad = g.float()
    preserver.apply()
    assert isinstance(operator_of(preserver), operators.Factored)
    S = preserver._layers[0].old.S
    expected = gp.preserve(g.float(), S, strength=strength)
    scale = float(expected.abs().max())
    torch.testing.assert_close(layer.weight.grad, expected, rtol=0, atol=3e-6 * scale)


def test_hard_update_with_few_directions_is_that_of_the_core(layer):
    torch.manual_seed(1)
    inputs = torch.randn(50, 4) @ torch.randn(4, IN)
    preserver = ended(layer, inputs, share=1.0)
    layer.weight.grad = torch.randn(7, IN)
    expected = gp.preserve(layer.weight.grad, basis=preserver._layers[0].old.bases[0])
    preserver.apply()
    assert isinstance(operator_of(preserver), operators.Factored)
    torch.testing.assert_close(layer.weight.grad, expected, rtol=1e-5, atol=1e-6)
    assert float((layer.weight.grad @ inputs.T).abs().max()) < 1e-3


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_low_rank_update_of_a_convolution_stays_in_the_memory_of_its_gradient(memory_format):
    torch.manual_seed(1)
    conv = nn.Conv2d(8, 5, 3, bias=False).to(memory_format=memory_format)
    preserver = ended(conv, torch.randn(4, 8, 6, 6), strength=2.0, rank=5)
    conv.weight.grad = torch.randn(5, 8, 3, 3).to(memory_format=memory_format)
    address, g = conv.weight.grad.data_ptr(), conv.weight.grad.reshape(5, -1).clone()
    preserver.apply()
    assert conv.weight.grad.data_ptr() == address
    expected = gp.preserve(g, preserver._layers[0].old.S, strength=2.0)
    torch.testing.assert_close(
        conv.weight.grad.reshape(5, -1), expected, rtol=0, atol=3e-6 * float(expected.abs().max())
    )
