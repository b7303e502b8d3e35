"""What the projector does in the cases that break other libraries, one test a policy."""

from collections import deque

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch_reference import assert_grads_equal, gradient, mlp, projected

import gradproj as gp
from gradproj.adapters.torch import Projector


class TwoHeads(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(4, 6)
        self.heads = nn.ModuleList([nn.Linear(6, 3), nn.Linear(6, 3)])
        self.spare = nn.Linear(6, 3)

    def forward(self, x, head):
        return self.heads[head](self.body(x).relu())


def test_unused_heads_count_as_zero_and_an_untouched_parameter_gets_none():
    model = TwoHeads()
    x = torch.randn(3, 5, 4)
    olds = [gradient(model, model(b, 0).square().sum()) for b in x[1:]]
    new = gradient(model, model(x[0], 1).square().sum())
    expected = projected(model, new, olds, strength=0.5)
    projector = Projector(model, gp.Decomposed(strength=0.5))
    projector.backward(model(x[0], 1).square().sum(), (model(b, 0).square().sum() for b in x[1:]))
    assert model.spare.weight.grad is None
    assert model.spare.bias.grad is None
    assert_grads_equal(model, {n: w for n, w in expected.items() if "spare" not in n})
    # Used by the old tasks alone: replay may still move it.
    assert model.heads[0].weight.grad.abs().sum() > 0


@pytest.mark.parametrize("engine", ["loop", "vmap"])
def test_both_engines_know_what_no_loss_has_used(engine):
    model = TwoHeads()
    new, *old = [(x,) for x in torch.randn(3, 5, 4)]
    projector = Projector(model, engine=engine)
    projector.backward_batches(lambda model, x: model(x, 0).square().sum(), new, old)
    unused = [name for name, p in model.named_parameters() if p.grad is None]
    assert unused == ["heads.1.weight", "heads.1.bias", "spare.weight", "spare.bias"]


def test_a_head_that_is_not_used_any_more_has_no_gradient_of_an_earlier_step():
    model = TwoHeads()
    x = torch.randn(2, 5, 4)
    answers = []
    used = Projector(model, gp.Decomposed(strength=0.5))
    for projector, heads in ((used, (1, 0)), (Projector(model, used.method), (0,))):
        for head in heads:
            model.zero_grad()
            model(x[1], head).square().sum().backward()
            projector.store(0)
            model(x[0], 1).square().sum().backward()
            projector.project()
        answers.append(model.heads[1].weight.grad.clone())
    assert torch.equal(*answers)


@pytest.mark.parametrize("heads", [(0, 1), (1, 0)])
def test_a_sum_knows_what_any_of_its_losses_has_used(heads):
    model = TwoHeads()
    x = torch.randn(5, 4)
    old = [lambda head=head: model(x, head).square().sum() for head in heads]
    Projector(model, gp.AGEM(strength=0.5)).backward(lambda: model.body(x).sum(), old)
    unused = [name for name, p in model.named_parameters() if p.grad is None]
    assert unused == ["spare.weight", "spare.bias"]


def test_weight_decay_leaves_untouched_parameters_alone():
    model = TwoHeads()
    before = model.spare.weight.detach().clone()
    optimizer = torch.optim.AdamW(model.parameters(), 0.1, weight_decay=0.5)
    projector = Projector(model)
    projector.backward(model(torch.randn(5, 4), 0).sum(), [model(torch.randn(5, 4), 1).sum()])
    optimizer.step()
    assert torch.equal(model.spare.weight, before)


def test_frozen_parameters_stay_out_and_may_thaw():
    model = mlp(4, 5, 3)
    model[0].requires_grad_(False)
    x = torch.randn(2, 6, 4)
    projector = Projector(model)
    assert list(projector.layers) == ["2"]
    projector.backward(model(x[0]).sum(), [model(x[1]).square().sum()])
    assert model[0].weight.grad is None
    model[0].requires_grad_(True)
    projector.backward(model(x[0]).sum(), [model(x[1]).square().sum()])
    assert list(projector.layers) == ["0", "2"]
    assert model[0].weight.grad is not None


def test_a_model_that_is_all_frozen_is_refused():
    with pytest.raises(ValueError, match="model has no parameter that requires a gradient"):
        Projector(mlp(2, 2).requires_grad_(False))


def test_a_head_that_grows_between_steps():
    model = mlp(4, 5, 2)
    projector = Projector(model)
    x = torch.randn(2, 6, 4)
    projector.backward(model(x[0]).sum(), [model(x[1]).square().sum()])
    model[2] = nn.Linear(5, 7)
    model.append(nn.Linear(7, 2))
    grads = [gradient(model, loss) for loss in (model(x[0]).sum(), model(x[1]).square().sum())]
    projector.backward(model(x[0]).sum(), [model(x[1]).square().sum()])
    assert list(projector.layers) == ["0", "2", "3"]
    assert_grads_equal(model, projected(model, grads[0], grads[1:]))


def test_parameters_that_change_after_store_are_an_error():
    model = mlp(4, 2)
    projector = Projector(model)
    model(torch.randn(3, 4)).sum().backward()
    projector.store(0)
    model[0].bias.requires_grad_(False)
    with pytest.raises(RuntimeError, match=r"parameters changed after store\(\), or the projec"):
        projector.project()


@pytest.mark.parametrize("moves", [True, False])
def test_batch_norm_uses_each_batch_and_moves_statistics_only_if_asked(moves):
    def build():
        torch.manual_seed(1)
        return nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 2))

    model, plain = build(), build()
    x = torch.randn(4, 8, 4) * torch.tensor([1.0, 2.0, 3.0, 4.0]).view(4, 1, 1)
    reference = build()
    grads = [gradient(reference, reference(b).square().sum()) for b in x]
    projector = Projector(model, running_statistics=moves)
    projector.backward(lambda: model(x[0]).square().sum(), (model(b).square().sum() for b in x[1:]))
    assert_grads_equal(model, projected(model, grads[0], grads[1:]))
    for batch in (*x[1:], x[0]) if moves else x[:1]:  # old tasks first, the new one last
        plain(batch)
    for name, buffer in plain.named_buffers():
        assert torch.equal(dict(model.named_buffers())[name], buffer), name


@pytest.mark.parametrize("form", [list, tuple, deque])
def test_statistics_cannot_be_kept_for_passes_already_made(form):
    model = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5))
    x = torch.randn(3, 4)
    projector = Projector(model, running_statistics=False)
    with pytest.raises(
        ValueError, match=r"old_losses holds tensors.*pass functions or a generator"
    ):
        projector.backward(model(x).sum(), form([model(x).sum()]))


def test_gradient_accumulation_equals_the_whole_batch():
    model = mlp(4, 5, 3)
    new, *old = torch.randn(4, 8, 4)
    projector = Projector(model)
    projector.backward(model(new).square().mean(), (model(x).square().mean() for x in old))
    expected = {name: p.grad.clone() for name, p in model.named_parameters()}
    for task, x in enumerate(old):
        projector.zero_grad(task)
        for micro in x.split(2):
            (model(micro).square().mean() / 4).backward()
        projector.store(task)
    projector.zero_grad()
    for micro in new.split(2):
        (model(micro).square().mean() / 4).backward()
    projector.project()
    assert_grads_equal(model, expected, rtol=1e-5)
    assert projector.copied == 0


def test_clipping_after_is_torch_as_usual():
    model = mlp(4, 5, 3)
    x = torch.randn(3, 8, 4)
    projector = Projector(model)
    projector.backward(model(x[0]).square().sum(), (model(b).square().sum() for b in x[1:]))
    nn.utils.clip_grad_norm_(model.parameters(), 0.01)
    total = torch.cat([p.grad.flatten() for p in model.parameters()]).norm()
    assert float(total) == pytest.approx(0.01, rel=1e-3)


def projected_by_hand(new, old, method=None):
    """Project one gradient of one layer; return the parameter, with w in its `.grad`."""
    model = nn.Linear(len(new), 1, bias=False)
    losses = [model(torch.tensor([x])).sum() for x in (new, *old)]
    Projector(model, method or gp.GEM()).backward(losses[0], losses[1:])
    return model.weight


def test_clipping_after_keeps_the_constraints_by_norm_and_not_by_value():
    old = [1.0, -3.0]
    w = projected_by_hand([2.0, 4.0], [old])
    assert w.grad.tolist() == [[3.0, 1.0]]
    nn.utils.clip_grad_norm_([w], 1.0)
    assert float(w.grad @ torch.tensor(old)) == pytest.approx(0, abs=1e-6)
    w.grad.copy_(torch.tensor([[3.0, 1.0]]))
    nn.utils.clip_grad_value_([w], 1.0)
    assert float(w.grad @ torch.tensor(old)) == -2


@pytest.mark.parametrize(
    ("method", "same"), [(gp.GEM(), True), (gp.AGEM(), False), (gp.Decomposed(), False)]
)
def test_an_old_gradient_that_is_clipped_before_matters_to_the_mean_alone(method, same):
    new, first, second = [2.0, 1.0, 3.0], [1.0, 0.0, 0.0], [0.0, -1.0, 0.0]
    whole = projected_by_hand(new, [first, second], method).grad
    clipped = projected_by_hand(new, [[x / 4 for x in first], second], method).grad
    assert torch.allclose(whole, clipped, atol=1e-5) == same


def test_momentum_acts_after_the_projection_and_may_hurt_an_old_task():
    weight, old = nn.Parameter(torch.zeros(1, 2)), torch.tensor([-1.0, 0.0])
    for momentum, hurt in ((0.0, False), (0.9, True)):
        optimizer = torch.optim.SGD([weight], 1.0, momentum=momentum)
        for olds in ([], [old.tolist()]):
            weight.grad = projected_by_hand([1.0, 0.0], olds).grad
            before = weight.detach().clone()
            optimizer.step()
        # To first order the old task's loss changes by its gradient along the step.
        assert (float((weight.detach() - before) @ old) > 0) == hurt


def test_clipping_before_uses_the_pieces():
    model = mlp(4, 5, 3)
    x = torch.randn(3, 8, 4)

    def clipped(batch):
        g = gradient(model, model(batch).square().sum())
        norm = torch.cat([part.flatten() for part in g.values()]).norm()
        return {name: part / norm for name, part in g.items()}

    grads = [clipped(b) for b in x]
    projector = Projector(model)
    for task, batch in enumerate(x[1:]):
        projector.zero_grad(task)
        model(batch).square().sum().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        projector.store(task)
    projector.zero_grad()
    model(x[0]).square().sum().backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    projector.project()
    assert_grads_equal(model, projected(model, grads[0], grads[1:]))
    assert projector.copied == 0


def scaled_step(model, optimizer, scaler, xs, overflow=None):
    projector = Projector(model, gp.Decomposed(strength=0.5), overflow="skip")
    losses = [scaler.scale(model(x).square().sum()) for x in xs]
    if overflow is not None:
        losses[overflow] = losses[overflow] * torch.inf
    projector.backward(losses[0], losses[1:])
    scaler.step(optimizer)
    scaler.update()
    return projector


def test_mixed_precision_scale_cancels_bit_for_bit():
    xs = torch.randn(3, 8, 4)
    scaled, plain = mlp(4, 5, 3), mlp(4, 5, 3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16)
    scaled_step(scaled, torch.optim.SGD(scaled.parameters(), 0.1), scaler, xs)
    Projector(plain, gp.Decomposed(strength=0.5)).backward(
        plain(xs[0]).square().sum(), [plain(x).square().sum() for x in xs[1:]]
    )
    torch.optim.SGD(plain.parameters(), 0.1).step()
    for a, b in zip(scaled.parameters(), plain.parameters(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("where", [0, 1, 2])
def test_mixed_precision_overflow_skips_the_step_and_lowers_the_scale(where):
    model = mlp(4, 5, 3)
    before = [p.detach().clone() for p in model.parameters()]
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    projector = scaled_step(model, optimizer, scaler, torch.randn(3, 8, 4), overflow=where)
    assert projector.last is None
    assert scaler.get_scale() == 2.0**15
    for p, b in zip(model.parameters(), before, strict=True):
        assert torch.equal(p, b)
    assert scaled_step(model, optimizer, scaler, torch.randn(3, 8, 4)).last is not None


def test_autocast_passes_work():
    model = mlp(4, 5, 3)
    xs = torch.randn(3, 8, 4)
    projector = Projector(model)

    def loss(x):
        with torch.autocast("cpu", torch.bfloat16):
            return model(x).square().sum()

    projector.backward(lambda: loss(xs[0]), (loss(x) for x in xs[1:]))
    assert all(p.grad.dtype == torch.float32 for p in model.parameters())


@pytest.mark.parametrize("old", [0, 2])
def test_a_gradient_that_is_not_finite_names_its_layer(old):
    model = mlp(4, 5, 3)
    projector = Projector(model)
    losses = [
        model[2].bias.sum() * torch.nan,
        *(model(torch.randn(2, 4)).sum() for _ in range(old)),
    ]
    with pytest.raises(
        gp.NotFiniteError, match="the gradients of layer '2' hold NaN or infinity; lower"
    ):
        projector.backward(losses[0], losses[1:])
    projector.backward(model(torch.randn(2, 4)).sum())  # and the next step is clean
    assert all(torch.isfinite(p.grad).all() for p in model.parameters())


def test_channels_last_and_transposed_parameters_keep_their_memory_order():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 2))
    x = torch.randn(3, 2, 3, 6, 6)
    grads = [gradient(model, model(b).square().sum()) for b in x]
    expected = projected(model, grads[0], grads[1:])
    model = model.to(memory_format=torch.channels_last)
    model[3].weight = nn.Parameter(model[3].weight.detach().t().contiguous().t())
    x = x.flatten(0, 1).to(memory_format=torch.channels_last).unflatten(0, (3, 2))
    projector = Projector(model)
    projector.backward(model(x[0]).square().sum(), (model(b).square().sum() for b in x[1:]))
    for p in model.parameters():
        assert p.grad.stride() == p.stride()
    assert_grads_equal(model, expected)
    assert projector.copied == 0


def test_memory_order_may_change_between_steps():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(64, 2))
    x = torch.randn(2, 3, 6, 6)
    projector = Projector(model)
    projector.backward(model(x).sum())
    model.to(memory_format=torch.channels_last)
    projector.backward(model(x).sum())
    assert model[0].weight.grad.is_contiguous(memory_format=torch.channels_last)


def test_gradients_that_are_not_contiguous_are_taken_by_store():
    model = mlp(4, 3)
    weight, bias = model.parameters()
    expected = torch.randn(4, 3)
    weight.grad, bias.grad = expected.t(), torch.randn(6)[::2]
    projector = Projector(model)
    projector.project()
    assert torch.equal(weight.grad, expected.t())


def test_sparse_gradients_are_refused():
    with pytest.raises(
        TypeError, match=r"1 is a Embedding that makes sparse gradients.*sparse=Fal"
    ):
        Projector(nn.Sequential(nn.Linear(2, 2), nn.Embedding(4, 3, sparse=True)))
    model = nn.Embedding(4, 3)
    projector = Projector(model)
    model.weight.grad = torch.zeros(4, 3).to_sparse()
    with pytest.raises(TypeError, match=r"gradient of a parameter of shape .4, 3. is sparse"):
        projector.store(0)


def test_complex_parameters_are_refused_unless_they_are_frozen():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2, dtype=torch.complex64))
    with pytest.raises(TypeError, match=r"parameter '1.weight' is complex .torch.complex64. and"):
        Projector(model)
    model[1].requires_grad_(False)
    projector = Projector(model)
    model[1].requires_grad_(True)  # seen at the next step, as all that changes between steps
    with pytest.raises(TypeError, match=r"torch.view_as_real has it, or freeze it"):
        projector.backward(model[0](torch.ones(1, 2)).sum())


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_other_precisions(dtype):
    model = mlp(4, 5, 3).to(dtype)
    x = torch.randn(4, 6, 4, dtype=dtype)
    grads = [gradient(model, model(b).square().mean()) for b in x]
    projector = Projector(model)
    projector.backward(model(x[0]).square().mean(), (model(b).square().mean() for b in x[1:]))
    assert all(p.grad.dtype == dtype for p in model.parameters())
    tolerance = 1e-10 if dtype == torch.float64 else 4 * torch.finfo(dtype).eps
    assert_grads_equal(model, projected(model, grads[0], grads[1:]), rtol=tolerance)


def test_one_layer_may_mix_precisions():
    model = mlp(4, 5, 3)
    model[0].bfloat16()
    x = torch.randn(3, 6, 4)

    def loss(b):
        return model[2](model[0](b.bfloat16()).relu().float()).square().mean()

    grads = [gradient(model, loss(b)) for b in x]
    projector = Projector(model, layers="all")
    projector.backward(lambda: loss(x[0]), (loss(b) for b in x[1:]))
    assert_grads_equal(model, projected(model, grads[0], grads[1:], "all"), rtol=0.02)


def test_only_one_graph_is_alive():
    model = mlp(4, 5, 3)
    alive, most = [0], [0]

    class Counted(torch.autograd.Function):
        @staticmethod
        def forward(_, x):
            alive[0] += 1
            most[0] = max(most[0], alive[0])
            return x.clone()

        @staticmethod
        def backward(_, g):
            alive[0] -= 1
            return g

    def loss(x):
        return Counted.apply(cross_entropy(model(x), torch.zeros(6, dtype=torch.long)))

    x = torch.randn(5, 6, 4)
    Projector(model).backward(loss(x[0]), (loss(b) for b in x[1:]))
    Projector(model).backward(lambda: loss(x[0]), [lambda b=b: loss(b) for b in x[1:]])
    assert (most[0], alive[0]) == (1, 0)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"method": "gem"}, TypeError, r"method is a str; pass a method such as gp.Decomposed\(\)"),
        ({"engine": "jit"}, ValueError, "engine='jit' is not known; use 'auto', 'loop', 'vmap'"),
        ({"overflow": "ignore"}, ValueError, "overflow='ignore' is not known; use 'raise', 'skip'"),
        ({"distributed": "ddp"}, ValueError, "distributed='ddp' is not known; use None, 'average'"),
        ({"distributed": "average"}, RuntimeError, r"call init_process_group\(\) first"),
    ],
)
def test_wrong_arguments_say_what_is_wrong(arguments, error, message):
    with pytest.raises(error, match=message):
        Projector(mlp(2, 2), **arguments)


def test_a_model_that_is_no_module_is_refused():
    with pytest.raises(TypeError, match=r"model is a generator; pass the torch.nn.Module itself"):
        Projector(mlp(2, 2).parameters())


def test_wrong_losses_and_tasks_say_what_is_wrong():
    model = mlp(2, 2)
    projector = Projector(model)
    with pytest.raises(TypeError, match=r"old_losses\[0\] is a float; pass a scalar tensor or a f"):
        projector.backward(model(torch.ones(1, 2)).sum(), [lambda: 1.0])
    with pytest.raises(ValueError, match="task=-1; old tasks are numbered from 0 on"):
        projector.store(-1)
    model(torch.ones(1, 2)).sum().backward()
    projector.store(1)
    with pytest.raises(ValueError, match="task=0 has not been stored but a later one has"):
        projector.project()
