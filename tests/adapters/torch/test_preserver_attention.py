"""`Preserver` on attention, which applies its linear layers without calling them."""

import copy

import pytest
import torch
from preserver_reference import ended, fill
from torch import nn
from torch.nn import functional

from gradproj.adapters.torch import Preserver


class Spelled(nn.Module):
    """Attention as four linear layers, with the weights of torch's module."""

    def __init__(self, torchs):
        super().__init__()
        size, bias = torchs.embed_dim, torchs.in_proj_bias is not None
        self.heads, self.batch_first = torchs.num_heads, torchs.batch_first
        sizes = (size, torchs.kdim, torchs.vdim, size)
        self.parts = nn.ModuleList(
            nn.Linear(n, size, bias=bias, dtype=torch.float64) for n in sizes
        )
        with torch.no_grad():
            for mine, other in zip(self.tensors(), tensors(torchs), strict=True):
                mine.copy_(other)

    def tensors(self):
        return [t for part in self.parts for t in part.parameters()]

    def forward(self, q, k, v):
        if not self.batch_first:
            q, k, v = (x.transpose(0, 1) for x in (q, k, v))
        inputs = zip(self.parts[:3], (q, k, v), strict=True)
        q, k, v = (layer(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for layer, x in inputs)
        y = functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        y = self.parts[3](y)
        return y if self.batch_first else y.transpose(0, 1)


def tensors(attention, of=lambda p: p):
    """The weight and bias of each of the four linear layers, or their gradients."""
    if attention.in_proj_weight is not None:
        weights = of(attention.in_proj_weight).chunk(3)
    else:
        weights = [of(getattr(attention, f"{c}_proj_weight")) for c in "qkv"]
    weights = [*weights, of(attention.out_proj.weight)]
    if attention.in_proj_bias is None:
        return weights
    biases = [*of(attention.in_proj_bias).chunk(3), of(attention.out_proj.bias)]
    return [t for pair in zip(weights, biases, strict=True) for t in pair]


CASES = {
    "plain": {},
    "batch first": {"batch_first": True},
    "no bias": {"bias": False},
    "other sizes": {"kdim": 3, "vdim": 5, "batch_first": True},
    "other sizes, no bias": {"kdim": 3, "bias": False},
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("selfish", [True, False])
@pytest.mark.parametrize("options", [{"strength": 2.0}, {"share": 0.9}])
def test_it_is_four_linear_layers(case, selfish, options):
    attention = nn.MultiheadAttention(4, 2, **CASES[case]).double()
    if selfish and attention.in_proj_weight is None:
        pytest.skip("query, key and value differ in size")
    for p in attention.parameters():
        nn.init.normal_(p)
    spelled = Spelled(attention)
    preservers = Preserver(attention, **options), Preserver(spelled, **options)
    assert len(preservers[0].protected) == 4
    assert not preservers[0].unprotected
    for _ in range(2):
        q = torch.randn(5, 3, 4, dtype=torch.float64)
        k = torch.randn(5, 3, attention.kdim, dtype=torch.float64)
        v = torch.randn(5, 3, attention.vdim, dtype=torch.float64)
        q, k, v = (q, q, q) if selfish else (q, k, v)
        for preserver in preservers:
            with preserver.observe():
                y = preserver.model(q, k, v)
            preserver.consolidate()
        torch.testing.assert_close(attention(q, k, v)[0], y)
    fill(attention)
    for mine, other in zip(
        spelled.tensors(), tensors(attention, lambda p: p.grad.clone()), strict=True
    ):
        mine.grad = other
    for preserver in preservers:
        preserver.apply()
    expected = [t.grad for t in spelled.tensors()]
    for found, wanted in zip(tensors(attention, lambda p: p.grad), expected, strict=True):
        torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("when", ["gradient", "step"])
def test_attached(when):
    model = nn.MultiheadAttention(4, 2, batch_first=True).double()
    x = torch.randn(1, 2, 4, dtype=torch.float64)
    preserver = Preserver(model, share=1.0, when=when)
    with preserver.observe():
        before = model(x, x, x)[0].detach()
    preserver.consolidate()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    preserver.attach(optimizer)
    fill(model)
    old = copy.deepcopy(model)
    optimizer.step()
    torch.testing.assert_close(model(x, x, x)[0], before)
    for p, q in zip(model.parameters(), old.parameters(), strict=True):
        assert not torch.equal(p, q)


def test_dropout_is_the_same_as_without_and_as_in_the_pass():
    model = nn.MultiheadAttention(4, 2, dropout=0.5, batch_first=True)
    x = torch.randn(3, 5, 4)
    torch.manual_seed(3)
    expected, state = model(x, x, x)[0], torch.get_rng_state()
    preserver = Preserver(model)
    seen = []
    out = next(layer for layer in preserver._layers if layer.name.endswith("out_proj"))
    kept, out.observe = out.observe, lambda m, a, keep: (seen.append(a), kept(m, a, keep))
    torch.manual_seed(3)
    with preserver.observe():
        found = model(x, x, x)[0]
    assert torch.equal(found, expected)
    assert torch.equal(torch.get_rng_state(), state)
    torch.testing.assert_close(model.out_proj(seen[0]), expected)


def test_a_mask_leaves_padding_out():
    tokens, mask = torch.randn(2, 3, 4), torch.tensor([[1, 1, 1], [1, 0, 0]])
    for batch_first in (True, False):
        model = nn.MultiheadAttention(4, 2, batch_first=batch_first)
        x = tokens if batch_first else tokens.transpose(0, 1)
        preserver = Preserver(model)
        with torch.no_grad(), preserver.observe(mask=mask):
            model(x, x, x, key_padding_mask=mask == 0)
        assert [layer.moments.count for layer in preserver._layers] == 4 * [4]
        total = preserver._layers[0].moments.total[:4, :4]
        rows = tokens[mask.bool()].double()
        torch.testing.assert_close(total, rows.T @ rows, rtol=1e-5, atol=1e-5)


@pytest.mark.filterwarnings("ignore:.*nested tensors:UserWarning")
@pytest.mark.parametrize("mode", ["train", "eval", "eval without gradients"])
@pytest.mark.parametrize("padded", [False, True])
def test_a_transformer_records_in_every_mode(mode, padded):
    """In evaluation torch replaces whole layers by one operation, which calls no module."""
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    model = nn.TransformerEncoder(layer, 2)
    model.train(mode == "train")
    x, padding = torch.randn(3, 5, 8), torch.zeros(3, 5, dtype=torch.bool)
    padding[0, 3:] = True
    options = {"src_key_padding_mask": padding} if padded else {}
    preserver = Preserver(model)
    with torch.set_grad_enabled(mode != "eval without gradients"):
        with preserver.observe(mask=~padding if padded else None):
            found = model(x, **options)
        expected = model(x, **options)
    torch.testing.assert_close(found[~padding], expected[~padding])
    assert {each.moments.count for each in preserver._layers} == {13 if padded else 15}
    assert len(preserver._layers) == 2 * (4 + 2 + 2)
    assert torch.backends.mha.get_fastpath_enabled()
    preserver.consolidate()
    assert not preserver.unprotected


def test_a_decoder_attends_to_other_inputs():
    model = nn.TransformerDecoderLayer(8, 2, 16, batch_first=True)
    preserver = Preserver(model)
    with preserver.observe():
        model(torch.randn(3, 5, 8), torch.randn(3, 7, 8))
    counts = {layer.name: layer.moments.count for layer in preserver._layers}
    assert counts["multihead_attn.query"] == counts["multihead_attn.out_proj"] == 15
    assert counts["multihead_attn.key"] == counts["multihead_attn.value"] == 21


class TestRefused:
    def test_extra_keys_and_computed_weights(self):
        class Mine(nn.MultiheadAttention):
            def forward(self, x):
                return super().forward(x, x, x)[0]

        model = nn.ModuleDict({
            "extra": nn.MultiheadAttention(4, 2, add_bias_kv=True),
            "normed": nn.utils.parametrizations.weight_norm(
                nn.MultiheadAttention(4, 2), "in_proj_weight"
            ),
            "mine": Mine(4, 2),
        })  # fmt: skip
        reasons = Preserver(model).unprotected
        assert "no input rows for 'bias_k'" in reasons["extra.bias_k"]
        assert "computed" in reasons["normed.in_proj_bias"]
        assert reasons["mine.in_proj_weight"] == "Mine is not a supported layer"
        # A subclass may or may not call its output layer: that is known after a task.
        preserver = Preserver(model["mine"])
        with preserver.observe():
            model["mine"](torch.randn(3, 2, 4))
        with pytest.raises(RuntimeError, match="no inputs were observed"):
            preserver.consolidate()

    def test_excluded(self):
        model = nn.Sequential(nn.MultiheadAttention(4, 2), nn.Linear(4, 4))
        assert list(Preserver(model, exclude=["0"]).protected) == ["1"]
        found = Preserver(model, exclude=["0.out_proj"])
        assert list(found.protected) == ["0.query", "0.key", "0.value", "1"]
        assert list(Preserver(model, layers=["0.out_proj"]).protected) == ["0.out_proj"]

    def test_tied_attention_adds_up_and_tied_weights_alone_are_listed(self):
        model = nn.ModuleList([nn.MultiheadAttention(4, 2) for _ in range(2)])
        model[1].in_proj_weight = model[0].in_proj_weight
        reasons = Preserver(model).unprotected
        assert set(reasons) == {"0.in_proj_weight", "0.in_proj_bias", "1.in_proj_bias"}
        model[1].in_proj_bias = model[0].in_proj_bias
        preserver = Preserver(model)
        with preserver.observe():
            for each in model:
                each(*3 * [torch.randn(5, 2, 4)])
        assert preserver._layers[0].moments.count == 20


def test_layers_that_no_task_called_are_listed():
    class Functional(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second, self.frozen = (nn.Linear(3, 3) for _ in range(3))
            self.frozen.requires_grad_(False)

        def forward(self, x):
            return self.frozen(functional.linear(self.first(x), self.second.weight))

    model = Functional()
    assert Preserver(model).unprotected == {}
    preserver = ended(model, torch.randn(4, 3))
    unseen, frozen = "no task called it inside of observe()", "frozen in all tasks so far"
    assert preserver.unprotected == {
        "second.weight": unseen,
        "second.bias": unseen,
        "frozen.weight": frozen,
        "frozen.bias": frozen,
    }
