"""Layers that read the same inputs share what is known of them."""

import copy
import io

import pytest
import torch
from preserver_reference import ended, fill, observed
from torch import nn

from gradproj.adapters.torch import Preserver

SIZE = 6


class Projections(nn.Module):
    """Query, key and value as three linear layers, as models of transformers have them."""

    def __init__(self):
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(SIZE, SIZE) for _ in range(3))

    def forward(self, x):
        return self.query(x) + self.key(x) + self.value(x)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(SIZE, 2, batch_first=True)

    def forward(self, x, other=None):
        other = x if other is None else other
        return self.attention(x, other, other, need_weights=False)[0]


MODELS = {"linear layers": Projections, "MultiheadAttention": Attention}


def inputs(seed):
    return torch.randn(4, 5, SIZE, generator=torch.Generator().manual_seed(seed))


def sizes(preserver):
    """Memory of the query, key and value."""
    return [size for name, size in preserver.memory.items() if "out_proj" not in name]


@pytest.mark.parametrize("options", [{"strength": 2.0}, {"share": 0.8}, {"rank": 2}])
@pytest.mark.parametrize("build", MODELS.values(), ids=MODELS)
def test_one_memory_for_query_key_and_value(build, options):
    preserver = ended(build(), inputs(0), inputs(1), **options)
    fill(preserver.model)
    preserver.apply()
    first, *others = sizes(preserver)
    assert first > 0
    assert others == [0, 0]


def test_the_update_is_that_of_each_layer_alone():
    model = Projections()
    alone = ended(copy.deepcopy(model), inputs(0), layers=["key"])
    together = ended(model, inputs(0))
    for preserver in (alone, together):
        fill(preserver.model)
        preserver.apply()
    assert torch.equal(model.key.weight.grad, alone.model.key.weight.grad)


def test_other_inputs_end_the_sharing():
    model = Attention()
    preserver = ended(model, inputs(0))
    with torch.no_grad(), preserver.observe():
        model(inputs(1), inputs(2))
    preserver.consolidate()
    query, key, value = sizes(preserver)
    assert query == key > 0  # the second task has one memory for the query, one for key and value
    assert value == 0


def test_a_saved_state_is_shared_too():
    model = Projections()
    preserver = ended(model, inputs(0))
    file = io.BytesIO()
    torch.save(preserver.state_dict(), file)
    file.seek(0)
    other = Preserver(model)
    other.load_state_dict(torch.load(file, weights_only=True))
    assert sizes(other) == sizes(preserver)
    observed(other, inputs(1))
    other.consolidate()
    assert sizes(other)[1:] == [0, 0]
