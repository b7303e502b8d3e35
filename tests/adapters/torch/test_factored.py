"""Pairs of inputs and output gradients give the same numbers as the gradients themselves."""

import copy
import pickle

import numpy as np
import pytest
import torch
import torch._dynamo.testing
from torch import nn
from torch.nn import functional as F  # noqa: N812
from torch.utils.checkpoint import checkpoint

import gradproj as gp
from gradproj.adapters.torch import Projector, group_parameters
from gradproj.adapters.torch._engines import pair_algebra, pair_cost
from gradproj.adapters.torch._engines.factored import Factored
from gradproj.adapters.torch._engines.pair_cost import worthwhile
from gradproj.adapters.torch._engines.pair_layers import Call

EXACT = {torch.float32: 1e-6, torch.float64: 1e-12, torch.bfloat16: 2e-2}


@pytest.fixture
def always(monkeypatch):
    """Factor every supported layer, however small."""
    monkeypatch.setattr(pair_cost, "worthwhile", lambda *_, **__: True)


def formed(model, losses):
    """Gradients in the usual form: task to name to gradient, None if there is none."""
    found = {}
    for task, loss in losses.items():
        torch.manual_seed(hash(task) % 1000)
        model.zero_grad()
        loss().backward()
        found[task] = {n: None if p.grad is None else p.grad.clone() for n, p in named(model)}
    model.zero_grad()
    return found


def recorded(model, losses, factored=None):
    """Run the same losses with pairs; return the recorder and the gradients in the usual form."""
    factored = factored or Factored(model)
    found = {}
    with factored.step(len(losses) - 1):
        for task, loss in losses.items():
            torch.manual_seed(hash(task) % 1000)
            model.zero_grad()
            value = loss() if callable(loss) else loss
            factored.choose()
            with factored.recording(task):
                value.backward()
            found[task] = {n: None if p.grad is None else p.grad.clone() for n, p in named(model)}
    return factored, found


def restored(model):
    return not any(isinstance(m.forward, Call) for m in model.modules())


def named(model):
    return [(n, p) for n, p in model.named_parameters() if p.requires_grad]


def check(model, losses, chosen, dtype=torch.float32, factored=None, given=None):
    """All gradients, products and updates agree; `chosen` names the factored parameters."""
    expected = formed(model, losses)
    factored, others = recorded(model, given or losses, factored)
    names = {id(p): n for n, p in model.named_parameters()}
    assert {names[id(p)] for p in factored.choose()} == set(chosen)
    for name, p in named(model):
        rows = [expected[task][name] for task in losses]
        if name not in chosen:
            for task, row in zip(losses, rows, strict=True):
                assert (others[task][name] is None) == (row is None)
                if row is not None:
                    close(others[task][name], row, dtype)
            continue
        assert all(others[task][name] is None for task in losses)
        assert factored.used(p) == any(row is not None for row in rows)
        rows = [torch.zeros_like(p) if row is None else row for row in rows]
        agree(factored, p, list(losses), rows, dtype)
    assert restored(model)
    return factored


def agree(factored, p, tasks, rows, dtype):
    *order, new = [rows[tasks.index(t)] for t in (*range(len(tasks) - 1), None)]
    G = torch.stack([r.double().flatten() for r in (*order, new)])
    T = len(order)
    products, Q = factored.products(p), (G @ G.T).numpy()
    lengths = np.sqrt(np.diag(Q)).clip(1e-30)
    scale = np.outer(lengths, lengths)
    assert (abs(products.C - Q[:T, :T]) <= EXACT[dtype] * scale[:T, :T]).all()
    assert (abs(products.h - Q[:T, T]) <= EXACT[dtype] * scale[:T, T]).all()
    assert abs(products.square - Q[T, T]) <= EXACT[dtype] * scale[T, T]
    c = np.linspace(-1, 2, T)
    w = factored.combine(p, c, 0.7)
    assert w.dtype == p.dtype
    assert w.shape == p.shape
    expected = (torch.tensor([*c, 0.7]) @ G).view(p.shape)
    size = float(torch.tensor([*abs(c), 0.7]) @ G.norm(dim=1))
    assert float((w.double() - expected).norm()) <= 2 * EXACT[dtype] * size
    for task, row in zip(tasks, rows, strict=True):
        close(factored.gradient(p, task), row, dtype)


def close(found, expected, dtype):
    error = float((found.double() - expected.double()).norm())
    assert error <= EXACT[dtype] * max(float(expected.double().norm()), 1e-20)


def classify(model, sizes, width=12, dtype=torch.float32, classes=4):
    """One loss per task with the given batch sizes, the new task last."""
    tasks = [*range(len(sizes) - 1), None]
    batches = [(torch.randn(n, width, dtype=dtype), torch.randint(classes, (n,))) for n in sizes]
    return {
        task: lambda x=x, y=y: F.cross_entropy(model(x), y)
        for task, (x, y) in zip(tasks, batches, strict=True)
    }


def mlp(dtype=torch.float32, **options):
    layers = [nn.Linear(12, 9, **options), nn.Tanh(), nn.Linear(9, 8, **options), nn.Tanh()]
    return nn.Sequential(*layers, nn.Linear(8, 4, **options)).to(dtype)


MLP = ["0.weight", "2.weight", "4.weight"]


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


@pytest.mark.usefixtures("always")
class TestUsedOutside:
    def losses(self, net, tasks):
        """Weights of both kinds are used directly in some of the tasks."""

        def loss(x, both):
            y = net[1](net[0](x))
            if both:
                y = y + F.linear(y, net[1].weight[:, :4]) + net[0].weight[3].sum()
            return y.square().sum()

        batches = {t: torch.randint(30, (3, 4)) for t in (0, 1, 2, None)}
        return {t: lambda x=x, t=t: loss(x, t in tasks) for t, x in batches.items()}

    @pytest.mark.parametrize("tasks", [[0], [None], [1, 2], [0, 1, 2, None]])
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_directly(self, tasks, dtype):
        net = nn.Sequential(nn.Embedding(30, 6), nn.Linear(6, 4)).to(dtype)
        losses, chosen = self.losses(net, tasks), ["0.weight", "1.weight"]
        factored = check(net, losses, chosen, dtype)
        # With several such gradients pairs do not pay: not in the next step.
        check(net, losses, chosen if len(tasks) == 1 else [], dtype, factored)

    def test_loss_from_before_the_step(self):
        model = mlp(torch.float64)
        losses = classify(model, [3, 5, 4], dtype=torch.float64)
        losses = {None: losses.pop(None), **losses}
        factored = Factored(model)
        early = {None: losses[None]()}
        # The number of rows is not known in the first step.
        check(model, losses, [], torch.float64, factored, {**losses, **early})
        early = {None: losses[None]()}
        check(model, losses, MLP, torch.float64, factored, {**losses, **early})
        # All losses from before: no pairs are recorded.
        early = {task: loss() for task, loss in losses.items()}
        check(model, losses, MLP, torch.float64, factored, early)

    def test_graph_that_outlives_the_step(self):
        model = mlp(torch.float64)
        x = torch.randn(3, 12, dtype=torch.float64)
        kept = []

        def loss():
            kept.append(model(x).square().sum())
            return model(x).sum()

        recorded(model, {0: loss, None: loss})
        model.zero_grad()
        kept[0].backward()
        found = [p.grad for p in model.parameters()]
        expected = torch.autograd.grad(model(x).square().sum(), list(model.parameters()))
        for a, b in zip(found, expected, strict=True):
            close(a, b, torch.float64)


@pytest.mark.usefixtures("always")
class TestSurroundings:
    def test_batches_that_overwrite_each_other(self):
        model = mlp(torch.float64)
        buffer = torch.empty(4, 12, dtype=torch.float64)
        tokens = torch.empty(4, dtype=torch.int64)
        net = nn.Sequential(model, nn.Embedding(9, 4).double())

        def loss(seed):
            with torch.no_grad():
                generator = torch.Generator().manual_seed(seed)
                buffer.normal_(generator=generator)
                tokens.random_(9, generator=generator)
            return (model(buffer) * net[1](tokens)).square().sum()

        losses = {0: lambda: loss(1), 1: lambda: loss(2), None: lambda: loss(3)}
        check(net, losses, [f"0.{name}" for name in MLP] + ["1.weight"], torch.float64)

    def test_hidden_layer_changed_after_backward(self):
        model = mlp()
        hidden = []
        model[1].register_forward_hook(lambda *args: hidden.append(args[2]))
        factored, _ = recorded(model, classify(model, [4, 4]))
        with torch.no_grad():
            hidden[0].zero_()
        with pytest.raises(RuntimeError, match=r"shape \(8, 9\) was changed in place"):
            factored.products(model[2].weight)

    def test_large_tensors_are_not_kept_for_small_parts_of_them(self):
        model = nn.Sequential(nn.Linear(12, 500), nn.Linear(500, 3))
        losses = {t: lambda: model[1](model[0](torch.randn(50, 12))[:2]).sum() for t in (0, None)}
        factored, _ = recorded(model, losses)
        for pairs in factored._tape.records[model[1].weight].pairs.values():
            assert pairs[0].inputs.untyped_storage().nbytes() == 2 * 500 * 4

    def test_error_in_the_middle(self):
        model = mlp()
        losses = classify(model, [4, 4, 4])
        factored = Factored(model)

        def fails():
            model(torch.randn(2, 12))
            raise ValueError("stop")

        for position in (0, 1, None):
            with pytest.raises(ValueError, match="stop"):
                recorded(model, {**losses, position: fails}, factored)
            assert restored(model)
            assert not factored.choose()
        check(model, losses, MLP, factored=factored)

    def test_error_in_backward(self):
        model = mlp()
        factored = Factored(model)

        def fails():
            y = model(torch.randn(2, 12))
            y.register_hook(lambda _: 1 / 0)
            return y.sum()

        with pytest.raises(ZeroDivisionError):
            recorded(model, {0: fails, None: fails}, factored)
        check(model, classify(model, [4, 4, 4]), MLP, factored=factored)

    def test_two_recorders_of_one_model(self):
        model = mlp()
        losses = classify(model, [4, 4, 4])
        with Factored(model).step(2):
            inner = Factored(model)
            with inner.step(2):
                losses[0]()
                assert not inner.choose()
        assert restored(model)

    @pytest.mark.parametrize("register", ["register_hook", "register_post_accumulate_grad_hook"])
    def test_hooks_on_parameters(self, register):
        model = mlp()
        getattr(model[0].weight, register)(lambda _: None)
        check(model, classify(model, [4, 4]), ["2.weight", "4.weight"])

    def test_hooks_on_modules(self):
        model = mlp()
        seen = []
        model[2].register_forward_hook(lambda *_: seen.append("forward"))
        model[2].register_full_backward_hook(lambda *_: seen.append("backward"))
        check(model, classify(model, [4, 4]), MLP)
        assert seen == ["forward", "backward"] * 4

    def test_layers_that_are_not_supported(self):
        class Mine(nn.Linear):
            def forward(self, x):
                return 2 * super().forward(x)

        net = nn.Sequential(
            Mine(12, 12),
            nn.utils.parametrizations.weight_norm(nn.Linear(12, 12)),
            nn.utils.parametrizations.orthogonal(nn.Linear(12, 12)),
            nn.Linear(12, 12, dtype=torch.complex64),
            nn.Linear(12, 4),
        )
        net[4].forward = lambda x: nn.Linear.forward(net[4], x)
        assert not any(call.available() for call in map_calls(net))
        for options in ({"sparse": True}, {"max_norm": 1.0}, {"scale_grad_by_freq": True}):
            assert not map_calls(nn.Embedding(30, 6, **options))
        assert not map_calls(nn.DataParallel(mlp()))

    def test_models_that_a_loss_copies(self):
        model = mlp(torch.float64)
        x = torch.randn(3, 12, dtype=torch.float64)
        copies = []

        def loss():
            copies.append(copy.deepcopy(model))
            copies.append(pickle.loads(pickle.dumps(model)))
            return model(x).square().sum() + sum(c(x).sum().detach() for c in copies)

        check(model, {0: loss, None: loss}, MLP, torch.float64)
        with torch.no_grad():
            for p in model.parameters():
                p.zero_()
        assert all(c(x).abs().sum() > 0 for c in copies)

    def test_recorders_can_be_copied(self):
        model = mlp()
        factored = Factored(model)
        losses = classify(model, [4, 4])
        check(model, losses, MLP, factored=factored)
        both = copy.deepcopy([model, factored])
        assert both[1].model is both[0]
        check(both[0], classify(both[0], [4, 4]), MLP, factored=both[1])

    def test_function_transforms_inside_a_loss(self):
        model = mlp(torch.float64)
        x = torch.randn(3, 12, dtype=torch.float64)

        def loss():
            other = {n: p.detach() * 2 for n, p in model.named_parameters()}
            y = torch.func.functional_call(model, other, (x,)).sum()
            each = torch.func.vmap(lambda row: model(row).square().sum())(x).sum()
            return y + each + model(x).sum()

        check(model, {0: loss, 1: loss, None: loss}, MLP, torch.float64)

    def test_no_pairs_for_evaluation_inside_a_loss(self):
        model = mlp(torch.float64)
        x = torch.randn(3, 12, dtype=torch.float64)

        def loss():
            with torch.no_grad():
                target = model(x)
            with torch.inference_mode():
                model(x)
            return (model(x) - 2 * target).square().sum()

        check(model, {0: loss, None: loss}, MLP, torch.float64)

    @pytest.mark.filterwarnings("ignore")
    @pytest.mark.parametrize("how", ["wrapper", "in place", "child", "loss", "other name"])
    def test_compiled(self, how):
        torch._dynamo.reset()

        class Net(nn.Sequential):
            def forward(self, x):  # torch does not compile that of nn.Sequential itself
                return super().forward(x)

        model = Net(*mlp(torch.float64))
        counter = torch._dynamo.testing.CompileCounter()
        call, chosen = model, MLP
        if how == "wrapper":
            call = torch.compile(model, backend=counter)
            model, chosen = call, []
        elif how == "in place":
            model.compile(backend=counter)
            chosen = []
        elif how == "child":
            model[2] = torch.compile(model[2], backend=counter)
            chosen = ["0.weight", "4.weight"]
        elif how in ("loss", "other name"):
            call, chosen = torch.compile(model.__call__, backend=counter), []
            if how == "other name":
                call = torch.compile(model, backend=counter)
        losses = classify(call, [4, 4, 4], dtype=torch.float64)
        factored = Factored(model)
        frames = []
        for _ in range(4):
            check(model, losses, chosen, torch.float64, factored)
            frames.append(counter.frame_count)
        assert frames[0] > 0
        assert frames[1] == frames[-1]  # nothing is compiled again
        torch._dynamo.reset()


def map_calls(net):
    found = Factored(net)
    with found.step(1):
        return list(found._calls)


class TestChoice:
    def test_formulas(self):
        weight = torch.empty(2000, 2000)
        assert worthwhile(weight, 420, 20)
        assert not worthwhile(weight, 2100, 20)
        assert not worthwhile(weight, 420, 0)
        assert not worthwhile(torch.empty(10, 2000), 420, 20)
        assert not worthwhile(torch.empty(256, 256), 128 * 21, 20)
        assert not worthwhile(torch.empty(32, 32), 2, 1)
        assert worthwhile(torch.empty(30522, 256), 128 * 21, 20, embedding=True)
        assert not worthwhile(torch.empty(100, 32), 5000, 2, embedding=True)

    def test_wide_layers_only(self):
        model = nn.Sequential(nn.Linear(12, 900), nn.Tanh(), nn.Linear(900, 800), nn.Linear(800, 4))
        check(model, classify(model, [8] * 6), ["2.weight"])

    def test_by_step(self):
        model = nn.Sequential(nn.Linear(12, 900), nn.Tanh(), nn.Linear(900, 800), nn.Linear(800, 4))
        factored = Factored(model)
        for rows, chosen in ((8, ["2.weight"]), (100, []), (9, ["2.weight"])):
            check(model, classify(model, [rows] * 6), chosen, factored=factored)

    def test_pause_after_a_step_without_wide_layers(self):
        factored = Factored(model := mlp())
        assert factored.promising(2)
        recorded(model, classify(model, [5, 4, 3]), factored)
        assert [factored.promising(2) for _ in range(17)] == [False] * 15 + [True] * 2
        recorded(model, classify(model, [5, 4, 3]), factored)
        assert factored.promising(3)
        assert not factored.promising(2)
        assert not factored.promising(0)

    def test_calls_and_tied_weights_count_together(self):
        net = nn.Sequential(nn.Linear(600, 600), nn.Linear(600, 600))
        net[1].weight = net[0].weight
        sizes = [9] * 6
        factored, _ = recorded(net, classify(net, sizes, 600, classes=600))
        assert not factored.choose()
        net[1].weight = nn.Parameter(net[1].weight.detach().clone())
        factored, _ = recorded(net, classify(net, sizes, 600, classes=600))
        assert len(factored.choose()) == 2

    def test_no_old_tasks(self):
        model = nn.Linear(900, 800)
        factored, _ = recorded(model, classify(model, [4], 900))
        assert not factored.choose()


@pytest.mark.usefixtures("always")
class TestNumbers:
    def cancelling(self, kappa, dtype, tasks=3):
        """Pairs whose sum is 1/kappa of their size, and the exact products of their gradients."""
        model = nn.Linear(40, 30, bias=False).to(dtype)
        factored = Factored(model)
        exact = []
        with factored.step(tasks):
            for task in (*range(tasks), None):
                x, d = torch.randn(8, 40, dtype=dtype), torch.randn(8, 30, dtype=dtype)
                dx = torch.randn(8, 40, dtype=dtype) / kappa if kappa else torch.zeros(8, 40)
                x, d = torch.cat([x, x + dx]), torch.cat([d, -d])
                loss = (model(x.requires_grad_()) * d).sum()
                factored.choose()
                with factored.recording(task):
                    loss.backward()
                x = x.detach().numpy().astype(np.longdouble)
                exact.append(np.einsum("ri,rj->ij", d.numpy().astype(np.longdouble), x).ravel())
        G = np.stack(exact)
        return factored, model.weight, G @ G.T

    @pytest.mark.parametrize("kappa", [1, 448, 1e4])
    def test_cancellation_within_a_task(self, kappa):
        factored, p, Q = self.cancelling(kappa, torch.float32)
        products = factored.products(p)
        lengths = np.sqrt(np.diag(Q))[:-1]
        error = abs(products.C - Q[:-1, :-1]) / np.outer(lengths, lengths)
        assert products.tolerance == 5e-6
        assert error.max() < 1e-7

    @pytest.mark.parametrize("kappa", [1, 10, 448, 1e6])
    def test_tolerance_covers_the_error_in_float64(self, kappa):
        factored, p, Q = self.cancelling(kappa, torch.float64)
        products = factored.products(p)
        lengths = np.sqrt(np.diag(Q))[:-1]
        error = abs(products.C - Q[:-1, :-1]) / np.outer(lengths, lengths)
        assert error.max() < products.tolerance + 1e-9 * (kappa > 1e3)
        assert products.tolerance < 1e-8

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_gradients_of_which_nothing_is_left(self, dtype):
        factored, p, _ = self.cancelling(0, dtype)
        products = factored.products(p)
        assert abs(products.C).max() <= (1e-25 if dtype == torch.float64 else 0)
        assert float(factored.combine(p, [1.0, 1.0, 1.0]).norm()) < 1e-4
        solution = gp.Decomposed(strength=0.5).solve(products)
        assert np.isfinite(solution.coefficients).all()

    @pytest.mark.parametrize("value", [np.nan, np.inf])
    @pytest.mark.parametrize("task", [0, 1, None])
    def test_not_finite(self, value, task):
        net = nn.Sequential(nn.Embedding(30, 6), nn.Linear(6, 4))
        losses = {
            t: lambda t=t: net(torch.arange(3)).sum() * (value if t == task else 1.0)
            for t in (0, 1, None)
        }
        factored, _ = recorded(net, losses)
        for p in (net[0].weight, net[1].weight):
            products = factored.products(p)
            assert not (products.finite and np.isfinite(products.square))

    def test_out(self):
        model = mlp()
        factored, _ = recorded(model, classify(model, [4, 4, 4]))
        p = model[2].weight
        out = torch.full_like(p, torch.nan)
        found = factored.combine(p, [1.0, 2.0], 3.0, out=out)
        assert found is out
        torch.testing.assert_close(out, factored.combine(p, [1.0, 2.0], 3.0))
        out = torch.empty(p.shape[::-1]).T
        torch.testing.assert_close(factored.combine(p, [1.0, 2.0], 3.0, out=out), found)
        with pytest.raises(KeyError):
            factored.products(model[0].bias)


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("method", [gp.Decomposed(strength=0.5), gp.GEM(0.1)], ids=repr)
@pytest.mark.parametrize(
    "layers",
    [
        "module",
        "tensor",
        "all",
        [["0.weight", "4.bias"], ["2.bias", "2.weight", "0.bias", "4.weight"]],
    ],
    ids=["module", "tensor", "all", "groups"],
)
def test_layers_that_mix_both_forms(layers, method):
    """The products of a layer are the sum over its parameters, factored or not."""
    model = mlp(torch.float64)
    losses = classify(model, [5, 4, 6, 3], dtype=torch.float64)
    expected = formed(model, losses)
    factored, others = recorded(model, losses)
    for members in group_parameters(model, layers).values():
        rows = [torch.cat([expected[t][n].flatten() for n in members]) for t in losses]
        w = gp.project(rows[-1].numpy(), torch.stack(rows[:-1]).numpy(), method)
        total = None
        for name in members:
            p = model.get_parameter(name)
            if p in factored.choose():
                products = factored.products(p)
            else:
                flat = [others[t][name].flatten().numpy() for t in losses]
                products = gp.measure(flat[-1], np.stack(flat[:-1]))
            total = products if total is None else total + products
        solution = method.solve(total)
        parts = []
        for name in members:
            p = model.get_parameter(name)
            if p in factored.choose():
                parts.append(factored.combine(p, solution.coefficients, solution.scale).flatten())
            else:
                flat = torch.stack([others[t][name].flatten() for t in losses])
                weights = torch.tensor([*solution.coefficients, float(solution.scale)])
                parts.append(weights @ flat)
        np.testing.assert_allclose(torch.cat(parts).numpy(), w, rtol=0, atol=1e-9 * abs(w).max())


def both(model, run, monkeypatch, **options):
    """`.grad` after the same calls of a Projector with all layers in the usual form, and factored.

    `run` gets a projector. The second result says which parameters had no columns in the end.
    """
    found = []
    for wide in (False, True):
        monkeypatch.setattr(pair_cost, "worthwhile", lambda *_, wide=wide, **__: wide)
        model.zero_grad()
        projector = Projector(model, **options)
        run(projector)
        found.append({n: None if p.grad is None else p.grad.clone() for n, p in named(model)})
        assert restored(model)
    names = {p: n for n, p in named(model)}
    return *found, {names[p] for p in projector._rows.apart}


def same(usual, factored, rtol=1e-9):
    for name, expected in usual.items():
        assert (factored[name] is None) == (expected is None)
        if expected is not None:
            scale = float(expected.abs().max())
            torch.testing.assert_close(factored[name], expected, rtol=0, atol=rtol * scale)


class TestProjector:
    @pytest.mark.parametrize(
        "method", [gp.Decomposed(), gp.Decomposed(strength=0.5), gp.GEM(0.5)], ids=repr
    )
    @pytest.mark.parametrize("layers", ["module", "tensor", "child", "all"])
    def test_layers_and_methods(self, method, layers, monkeypatch):
        model = mlp(torch.float64)
        losses = classify(model, [5, 4, 6, 3], dtype=torch.float64)
        new = losses.pop(None)

        def run(projector):
            for _ in range(3):  # the third step adds to `.grad` of the second
                if _ < 2:
                    model.zero_grad()
                projector.backward(new, list(losses.values()))

        *found, apart = both(model, run, monkeypatch, method=method, layers=layers)
        same(*found)
        assert apart == set(MLP)

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
    def test_lower_precision(self, dtype, monkeypatch):
        model = mlp(dtype)
        losses = classify(model, [5, 4, 6, 3], dtype=dtype)
        new = losses.pop(None)
        run = lambda projector: projector.backward(new, list(losses.values()))  # noqa: E731
        *found, apart = both(model, run, monkeypatch, method=gp.Decomposed(strength=0.5))
        same(*found, rtol=1e-5 if dtype == torch.float32 else 5e-2)
        assert apart == set(MLP)

    def test_embeddings_and_mixed_dtypes(self, monkeypatch):
        net = nn.Sequential(nn.Embedding(30, 6, padding_idx=0), nn.Linear(6, 4).double())
        net.insert(1, nn.Identity())
        net[1].forward = lambda x: x.double()
        batches = [(torch.randint(30, (4, 5)),) for _ in range(4)]
        loss = lambda net, x: net(x).square().sum()  # noqa: E731

        def run(projector):
            projector.backward_batches(loss, batches[0], batches[1:])

        *found, apart = both(net, run, monkeypatch, method=gp.GEM(0.5), layers="all")
        same(*found, rtol=1e-6)
        assert apart == {"0.weight", "2.weight"}

    def test_a_model_without_other_parameters(self, monkeypatch):
        model = mlp(torch.float64, bias=False)
        losses = classify(model, [5, 4, 6, 3], dtype=torch.float64)
        new = losses.pop(None)
        run = lambda projector: projector.backward(new, list(losses.values()))  # noqa: E731
        *found, apart = both(model, run, monkeypatch)
        same(*found)
        assert apart == set(MLP)

    def test_new_loss_as_a_tensor(self, monkeypatch):
        model = mlp(torch.float64)
        losses = classify(model, [5, 4, 6, 3], dtype=torch.float64)
        new = losses.pop(None)

        def run(projector):
            for _ in range(2):  # rows are known in the second step
                model.zero_grad()
                projector.backward(new(), list(losses.values()))

        *found, apart = both(model, run, monkeypatch)
        same(*found)
        assert apart == set(MLP)

    @pytest.mark.parametrize(
        ("options", "given"),
        [
            ({"method": gp.AGEM()}, list),
            ({"method": gp.SGEM(seed=0)}, list),
            ({"method": gp.Decomposed()}, iter),  # the number of tasks is not known
        ],
        ids=["sum", "one task", "iterator"],
    )
    def test_steps_without_pairs(self, options, given, monkeypatch):
        model = mlp(torch.float64)
        losses = classify(model, [5, 4, 6, 3], dtype=torch.float64)
        new = losses.pop(None)
        run = lambda projector: projector.backward(new, given(losses.values()))  # noqa: E731
        *found, apart = both(model, run, monkeypatch, **copy.deepcopy(options))
        assert not apart
        if not isinstance(options["method"], gp.SGEM):
            same(*found)

    def test_all_ways_in_turn(self, monkeypatch):
        model = mlp(torch.float64)
        losses = classify(model, [5, 4, 6, 3], dtype=torch.float64)
        new = losses.pop(None)

        def run(projector):
            projector.backward(new, list(losses.values()))
            projector.backward(new, list(losses.values())[:1])  # another number of tasks
            model.zero_grad()
            for task, loss in losses.items():
                projector.zero_grad(task)
                loss().backward()
                projector.store(task)
            projector.zero_grad()
            new().backward()
            projector.project()
            projector.backward(new, list(losses.values()))  # adds to it

        *found, _ = both(model, run, monkeypatch)
        same(*found)

    @pytest.mark.parametrize("fails", [0, 1, None])
    def test_error_in_the_middle(self, fails, monkeypatch):
        monkeypatch.setattr(pair_cost, "worthwhile", lambda *_, **__: True)
        model = mlp(torch.float64)
        losses = classify(model, [5, 4, 6, 3], dtype=torch.float64)
        new = losses.pop(None)
        projector = Projector(model)
        projector.backward(new, list(losses.values()))
        before = [p.grad.clone() for p in model.parameters()]

        def stop():
            model(torch.zeros(1, 12, dtype=torch.float64))
            raise ValueError("stop")

        old = [stop if task == fails else loss for task, loss in losses.items()]
        with pytest.raises(ValueError, match="stop"):
            projector.backward(stop if fails is None else new, old)
        assert restored(model)
        for p, expected in zip(model.parameters(), before, strict=True):
            assert torch.equal(p.grad, expected)

    @pytest.mark.parametrize("task", [0, None])
    def test_overflow(self, task, monkeypatch):
        monkeypatch.setattr(pair_cost, "worthwhile", lambda *_, **__: True)
        model = mlp(bias=False)
        losses = classify(model, [5, 4, 3])
        losses[task] = lambda: model(torch.full((2, 12), torch.inf)).sum()
        new = losses.pop(None)
        projector = Projector(model)
        with pytest.raises(gp.NotFiniteError, match="layer '0'"):
            projector.backward(new, list(losses.values()))
        assert all(p.grad is None for p in model.parameters())
        Projector(model, overflow="skip").backward(new, list(losses.values()))
        assert all(p.grad.isnan().all() for p in model.parameters())

    def test_update_beyond_the_range_of_float16(self, monkeypatch):
        monkeypatch.setattr(pair_cost, "worthwhile", lambda *_, **__: True)
        model = nn.Linear(40, 30, bias=False).half()
        x = torch.full((1, 40), 300.0, dtype=torch.float16)
        loss = lambda: (model(x) * 150).sum()  # noqa: E731
        projector = Projector(model, gp.Decomposed(strength=10.0))
        with pytest.raises(gp.NotFiniteError, match="does not fit"):
            projector.backward(loss, [loss, loss])

    def test_parameters_that_are_frozen_or_replaced_later(self, monkeypatch):
        monkeypatch.setattr(pair_cost, "worthwhile", lambda *_, **__: True)
        model = mlp()
        losses = list(classify(model, [5, 4, 3]).values())
        projector = Projector(model)
        projector.backward(losses[0], losses[1:])
        model[0].weight.requires_grad_(False)
        projector.backward(losses[0], losses[1:])
        assert model[0].weight.grad is None
        model[2] = nn.Linear(9, 8)
        projector.backward(losses[0], losses[1:])
        assert set(projector._rows.apart) == {model[2].weight, model[4].weight}

    def test_memory(self):
        model = nn.Sequential(nn.Linear(1000, 1000), nn.Tanh(), nn.Linear(1000, 4))
        losses = list(classify(model, [4] * 10, width=1000).values())
        projector = Projector(model)
        projector.backward(losses[0], losses[1:])
        assert set(projector._rows.apart) == {model[0].weight}
        assert sum(block.rows.numel() for block in projector._rows.blocks) == 10 * 5004
        assert model[0].weight.grad.untyped_storage().nbytes() == 4_000_000

    def test_auto_uses_the_loop_for_wide_layers(self):
        for width, expected in ((30, "vmap"), (800, "loop")):
            model = nn.Sequential(nn.Linear(800, width), nn.Tanh(), nn.Linear(width, 4))
            batches = [(torch.randn(4, 800), torch.randint(4, (4,))) for _ in range(13)]
            loss = lambda model, x, y: F.cross_entropy(model(x), y)  # noqa: E731
            projector = Projector(model, engine="auto")
            projector.backward_batches(loss, batches[0], batches[1:])
            assert projector.engine == expected
