"""Factored layers among hooks, errors, copies, compiled modules and direct uses of a weight."""

import copy
import pickle

import pytest
import torch
import torch._dynamo.testing
from factored_reference import MLP, check, classify, close, mlp, recorded, restored
from torch import nn
from torch.nn import functional as F  # noqa: N812

from gradproj.adapters.torch._engines.factored import Factored


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
