"""Pairs of inputs and output gradients give the same numbers as the gradients themselves."""

import pytest
import torch
from factored_reference import MLP, agree, check, classify, formed, mlp, recorded
from torch import nn
from torch.utils.checkpoint import checkpoint

from gradproj.adapters.torch._engines import pair_algebra, pair_cost


@pytest.mark.usefixtures("always")
class TestEquality:
    @pytest.mark.parametrize("bias", [True, False])
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_linear(self, dtype, bias):
        model = mlp(dtype, bias=bias)
        check(model, classify(model, [5, 5, 5, 3], dtype=dtype), MLP, dtype)

    def test_ragged_batches_and_no_rows(self):
        model = mlp()
        losses = classify(model, [5, 1, 17, 3])
        losses[3], losses[None] = lambda: model(torch.randn(0, 12)).sum(), losses.pop(None)
        check(model, losses, MLP)

    def test_many_rows_in_blocks(self, monkeypatch):
        monkeypatch.setattr(pair_algebra, "_ROWS", 4)
        model = mlp(torch.float64)
        check(model, classify(model, [5, 1, 17, 3], dtype=torch.float64), MLP, torch.float64)

    @pytest.mark.parametrize("shape", [(12,), (5, 12), (2, 3, 12), (2, 1, 3, 12)])
    def test_shapes(self, shape):
        model = mlp(torch.float64)
        batches = {t: torch.randn(shape, dtype=torch.float64) for t in (0, 1, None)}
        losses = {t: lambda x=x: model(x).square().sum() for t, x in batches.items()}
        check(model, losses, MLP, torch.float64)

    def test_expanded_and_transposed_inputs(self):
        model = mlp(torch.float64)
        x = torch.randn(12, 6, dtype=torch.float64)
        losses = {
            0: lambda: model(x.T).sum(),  # the output gradient is an expanded number
            1: lambda: model(x[:, :1].T.expand(7, 12)).square().sum(),
            None: lambda: model(x.T[::2]).square().sum(),
        }
        check(model, losses, MLP, torch.float64)

    def test_new_task_first(self):
        model = mlp()
        losses = classify(model, [5, 4, 3])
        check(model, {None: losses.pop(None), **losses}, MLP)

    def test_tied_linear_weights(self):
        model = mlp(torch.float64)
        model.insert(2, nn.Linear(9, 9).double())
        model.insert(3, nn.Linear(9, 9).double())
        model[3].weight = model[2].weight
        chosen = ["0.weight", "2.weight", "4.weight", "6.weight"]
        check(model, classify(model, [5, 4, 3], dtype=torch.float64), chosen, torch.float64)

    def test_module_called_several_times(self):
        model = mlp(torch.float64)
        loop = nn.Linear(12, 12).double()
        net = nn.ModuleList([loop, model])

        def loss(x):
            for _ in range(3):
                x = loop(x).tanh()
            return model(x).square().sum()

        batches = {t: torch.randn(3, 12, dtype=torch.float64) for t in (0, 1, None)}
        losses = {t: lambda x=x: loss(x) for t, x in batches.items()}
        check(net, losses, ["0.weight", *(f"1.{name}" for name in MLP)], torch.float64)

    @pytest.mark.parametrize("names", [["0.weight"], ["2.weight", "2.bias"], ["4.bias"]])
    def test_frozen(self, names):
        model = mlp()
        for name in names:
            model.get_parameter(name).requires_grad_(False)
        chosen = [name for name in MLP if name not in names]
        check(model, classify(model, [5, 4, 3]), chosen)

    def test_unused_layers(self):
        body, heads = nn.Linear(12, 8), nn.ModuleList([nn.Linear(8, 4) for _ in range(4)])
        net = nn.ModuleList([body, heads])
        x = torch.randn(5, 12)
        losses = {t: lambda h=h: heads[h](body(x)).square().sum() for t, h in ((0, 0), (1, 2))}
        losses[None] = losses[1]
        # Only the layers of the first forward pass are known when the choice is made.
        check(net, losses, ["0.weight", "1.0.weight"])

    def test_dropout(self):
        model = mlp()
        model.insert(2, nn.Dropout(0.5))
        check(model, classify(model, [5, 4, 3]), ["0.weight", "3.weight", "5.weight"])

    def test_half_precision_parameters(self):
        model = mlp(torch.bfloat16)
        losses = classify(model, [5, 4, 3], dtype=torch.bfloat16)
        check(model, losses, MLP, torch.bfloat16)

    @pytest.mark.parametrize("inside", [True, False])
    def test_autocast(self, inside):
        model = mlp()

        def cast(loss):
            def run():
                with torch.autocast("cpu", dtype=torch.bfloat16):
                    return loss()

            return run

        losses = {t: cast(loss) for t, loss in classify(model, [5, 4, 3]).items()}
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=not inside):
            check(model, losses, MLP, torch.bfloat16)

    def test_autocast_does_not_lower_the_products(self):
        model = mlp()
        losses = classify(model, [5, 4, 3])
        expected = formed(model, losses)
        factored, _ = recorded(model, losses)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            for name in MLP:
                rows = [expected[task][name] for task in losses]
                agree(factored, model.get_parameter(name), list(losses), rows, torch.float32)

    @pytest.mark.parametrize("use_reentrant", [True, False])
    def test_checkpointing(self, use_reentrant):
        model = mlp(torch.float64)
        first, rest = model[:2], model[2:]

        def loss(x):
            h = checkpoint(first, x, use_reentrant=use_reentrant)
            return checkpoint(rest, h, use_reentrant=use_reentrant).square().sum()

        batches = [torch.randn(n, 12, dtype=torch.float64, requires_grad=True) for n in (5, 4, 3)]
        losses = {t: lambda x=x: loss(x) for t, x in zip((0, 1, None), batches, strict=True)}
        check(model, losses, MLP, torch.float64)

    @pytest.mark.parametrize("use_reentrant", [True, False])
    def test_checkpointing_of_layers_that_are_not_chosen(self, use_reentrant, monkeypatch):
        wide = lambda p, rows, *_, **__: p.shape[0] != 8 or rows < 4  # noqa: E731
        monkeypatch.setattr(pair_cost, "worthwhile", wide)
        model = mlp(torch.float64)

        def loss(x):
            return checkpoint(model, x, use_reentrant=use_reentrant).square().sum()

        batches = [torch.randn(n, 12, dtype=torch.float64, requires_grad=True) for n in (5, 4, 3)]
        losses = {t: lambda x=x: loss(x) for t, x in zip((0, 1, None), batches, strict=True)}
        check(model, losses, ["0.weight", "4.weight"], torch.float64)

    def test_multihead_attention(self):
        net = nn.ModuleDict(
            {"a": nn.MultiheadAttention(12, 3, batch_first=True), "b": nn.Linear(12, 4)}
        ).double()
        batches = {t: torch.randn(2, 5, 12, dtype=torch.float64) for t in (0, 1, None)}
        losses = {
            t: lambda x=x: net["b"](net["a"](x, x, x)[0]).square().sum() for t, x in batches.items()
        }
        check(net, losses, ["b.weight"], torch.float64)

    def test_transformer_encoder(self):
        layer = nn.TransformerEncoderLayer(12, 2, 20, dropout=0.1, batch_first=True)
        net = nn.Sequential(nn.TransformerEncoder(layer, 2), nn.Linear(12, 4)).double()
        batches = {t: torch.randn(2, 5, 12, dtype=torch.float64) for t in (0, 1, None)}
        losses = {t: lambda x=x: net(x).square().sum() for t, x in batches.items()}
        linear = [f"0.layers.{k}.linear{i}.weight" for k in (0, 1) for i in (1, 2)]
        check(net, losses, [*linear, "1.weight"], torch.float64)

    def test_second_derivatives(self):
        model = mlp(torch.float64)

        def penalty(x):
            x = x.clone().requires_grad_()
            y = model(x).square().sum()
            (g,) = torch.autograd.grad(y, x, create_graph=True)
            (u,) = torch.autograd.grad(y, model[2].weight, create_graph=True)
            return y + g.square().sum() + u.square().sum()

        batches = {t: torch.randn(3, 12, dtype=torch.float64) for t in (0, 1, None)}
        losses = {t: lambda x=x: penalty(x) for t, x in batches.items()}
        check(model, losses, MLP, torch.float64)

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    @pytest.mark.parametrize("padding", [None, 2])
    @pytest.mark.parametrize("numbers", [1 << 20, 40])
    def test_embedding(self, padding, numbers, dtype, monkeypatch):
        monkeypatch.setattr(pair_algebra, "_NUMBERS", numbers)
        net = nn.Sequential(nn.Embedding(30, 6, padding_idx=padding), nn.Linear(6, 4)).to(dtype)
        batches = [torch.randint(high, (n, 4)) for n, high in ((5, 30), (9, 4), (2, 30), (3, 8))]
        losses = {
            t: lambda x=x: net(x).square().sum()
            for t, x in zip((0, 1, 2, None), batches, strict=True)
        }
        check(net, losses, ["0.weight", "1.weight"], dtype)

    def test_embedding_with_only_padding_and_small_integers(self):
        net = nn.Sequential(nn.Embedding(30, 6, padding_idx=2), nn.Linear(6, 4)).double()
        batches = {0: torch.full((3,), 2), 1: torch.arange(5, dtype=torch.int32)}
        batches[None] = torch.tensor([[3, 3], [3, 4]])
        losses = {t: lambda x=x: net(x).square().sum() for t, x in batches.items()}
        check(net, losses, ["0.weight", "1.weight"], torch.float64)

    def test_embedding_tied_to_a_linear_layer_is_not_factored(self):
        net = nn.Sequential(nn.Embedding(30, 6), nn.Linear(6, 6), nn.Linear(6, 30)).double()
        net[2].weight = net[0].weight
        batches = {t: torch.randint(30, (3, 4)) for t in (0, 1, None)}
        losses = {t: lambda x=x: net(x).square().sum() for t, x in batches.items()}
        check(net, losses, ["1.weight"], torch.float64)
