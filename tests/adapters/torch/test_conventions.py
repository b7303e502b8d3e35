"""The conventions of torch: `.grad` accumulates, losses are returned, batches may be dicts."""

import threading

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint
from torch_reference import mlp

import gradproj as gp
from gradproj.adapters.torch import EpisodicMemory, Projector, project_gradients

METHODS = [gp.GEM(), gp.AGEM(), gp.Decomposed(rank=2)]
DTYPES = [torch.float32, torch.float64, torch.bfloat16]


def loss(model, x, y):
    return cross_entropy(model(x), y)


def batches(count, seed=0, dtype=torch.float32):
    draw = torch.Generator().manual_seed(seed)
    return [
        (torch.randn(6, 5, generator=draw).to(dtype), torch.randint(3, (6,), generator=draw))
        for _ in range(count + 1)
    ]


def grads(model):
    return [None if p.grad is None else p.grad.clone() for p in model.parameters()]


def alone(model, method, new, old):
    """Return the update of one step of a projector of its own; `.grad` stays as it was."""
    before = [p.grad for p in model.parameters()]
    model.zero_grad()
    Projector(model, method).backward_batches(loss, new, old)
    found = grads(model)
    for p, grad in zip(model.parameters(), before, strict=True):
        p.grad = grad
    return found


# `.grad` adds up ---------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("method", METHODS, ids=repr)
def test_updates_accumulate_until_zero_grad(method, dtype):
    model = mlp(5, 6, 3).to(dtype)
    projector = Projector(model, method)
    total = [torch.zeros_like(p) for p in model.parameters()]
    for micro in range(3):
        new, *old = batches(3, micro, dtype)
        expected = alone(model, method, new, old)
        projector.backward_batches(loss, new, old)
        total = [a + b for a, b in zip(total, expected, strict=True)]
    for found, wanted in zip(grads(model), total, strict=True):
        torch.testing.assert_close(found, wanted)
    model.zero_grad()
    projector.backward_batches(loss, new, old)
    for found, wanted in zip(grads(model), expected, strict=True):
        torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("in_place", [True, False])
def test_the_update_is_added_to_a_gradient_of_another_kind(in_place):
    model = mlp(5, 6, 3)
    new, *old = batches(2)
    expected = alone(model, gp.GEM(), new, old)
    loss(model, *new).backward()
    plain, tensors = grads(model), [p.grad for p in model.parameters()]
    if not in_place:
        model[0].weight.grad = None
    Projector(model, gp.GEM()).backward_batches(loss, new, old)
    for p, w, g, tensor in zip(model.parameters(), expected, plain, tensors, strict=True):
        if not in_place and p is model[0].weight:
            assert torch.equal(p.grad, w)
        else:
            assert p.grad is tensor  # as loss.backward() leaves it
            assert torch.equal(p.grad, g + w)


def test_zero_grad_in_place_and_of_the_projector_start_again():
    model = mlp(5, 6, 3)
    new, *old = batches(2)
    expected = alone(model, gp.GEM(), new, old)
    projector = Projector(model, gp.GEM())
    for zero in (
        lambda: None,
        lambda: model.zero_grad(set_to_none=False),
        projector.zero_grad,
        lambda: projector.zero_grad(task=1),
    ):
        zero()
        projector.backward_batches(loss, new, old)
        for found, wanted in zip(grads(model), expected, strict=True):
            assert torch.equal(found, wanted)


def test_a_parameter_without_gradients_keeps_its_grad():
    model = nn.ModuleList([nn.Linear(2, 1), nn.Linear(2, 1)])
    model[1].weight.grad = torch.ones(1, 2)
    Projector(model).backward(model[0](torch.ones(1, 2)).sum())
    assert torch.equal(model[1].weight.grad, torch.ones(1, 2))
    assert model[1].bias.grad is None


def test_accumulation_survives_more_tasks_and_new_layers():
    model = nn.Sequential(nn.Linear(5, 3))
    projector = Projector(model, gp.GEM())
    new, *old = batches(4)
    first = alone(model, gp.GEM(), new, old[:1])
    projector.backward_batches(loss, new, old[:1])
    second = alone(model, gp.GEM(), new, old)
    projector.backward_batches(loss, new, old)  # with more rows
    total = [a + b for a, b in zip(first, second, strict=True)]
    for found, wanted in zip(grads(model), total, strict=True):
        torch.testing.assert_close(found, wanted)
    model.append(nn.Linear(3, 3))
    third = alone(model, gp.GEM(), new, old)
    projector.backward_batches(loss, new, old)
    for found, a, b in zip(grads(model)[:2], total, third[:2], strict=True):
        torch.testing.assert_close(found, a + b)


def test_project_replaces_what_is_there():
    model = nn.Linear(2, 1, bias=False)
    projector = Projector(model, gp.GEM())
    model(torch.tensor([[-1.0, 1.0]])).sum().backward()
    projector.store(0)
    for x in ([0.5, 0.0], [0.5, 0.0]):
        model(torch.tensor([x])).sum().backward()
    projector.project()
    assert torch.equal(model.weight.grad, torch.tensor([[0.5, 0.5]]))


# Losses and batches ------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ["loop", "vmap"])
def test_the_new_loss_is_returned(engine):
    model = mlp(5, 6, 3)
    new, *old = batches(3)
    projector = Projector(model, engine=engine)
    expected = loss(model, *new).detach()
    value = projector.backward_batches(loss, new, old)
    assert torch.equal(value, expected)
    assert not value.requires_grad
    assert torch.equal(projector.backward(loss(model, *new)), expected)
    assert torch.equal(projector.backward(lambda: loss(model, *new)), expected)


@pytest.mark.parametrize("engine", ["loop", "vmap", "auto"])
def test_batches_may_be_dicts(engine):
    model = mlp(5, 6, 3)
    new, *old = batches(12)
    expected = alone(model, gp.GEM(), new, old)
    projector = Projector(model, gp.GEM(), engine=engine)
    as_dicts = [{"y": y, "x": x} for x, y in (new, *old)]
    projector.backward_batches(loss, as_dicts[0], as_dicts[1:])
    for found, wanted in zip(grads(model), expected, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-6)
    with pytest.raises(TypeError, match=r"old is a dict; .* for example list\(old.values\(\)\)"):
        projector.backward_batches(loss, new, dict(enumerate(old)))


def test_batches_may_differ_in_size_and_hold_more_than_tensors():
    model = mlp(5, 6, 3)
    new, *old = batches(3)
    old = [{"x": x[: 2 + k], "y": y[: 2 + k], "weight": 0.5} for k, (x, y) in enumerate(old)]

    def weighted(model, x, y, weight=1.0):
        return weight * loss(model, x, y)

    parameters = list(model.parameters())
    each = [torch.autograd.grad(weighted(model, **batch), parameters) for batch in old]
    g = torch.autograd.grad(weighted(model, *new), parameters)
    expected = project_gradients(g, each, gp.GEM(), [[0, 1], [2, 3]])
    Projector(model, gp.GEM()).backward_batches(weighted, new, old)
    for found, wanted in zip(grads(model), expected, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-6)


def test_losses_that_share_a_graph_need_retain_graph():
    model = mlp(5, 6, 3)
    (x, y), _ = batches(1)

    def losses():
        outputs = model(x)
        return [cross_entropy(outputs[k : k + 2], y[k : k + 2]) for k in (0, 2, 4)]

    projector = Projector(model, gp.GEM())
    new, *old = losses()
    with pytest.raises(RuntimeError, match="retain_graph=True"):
        projector.backward(new, old)
    assert grads(model) == [None] * 4
    new, *old = losses()
    projector.backward(new, old, retain_graph=True)
    found = grads(model)
    model.zero_grad()
    projector.backward(lambda: losses()[0], [lambda: losses()[1], lambda: losses()[2]])
    for a, b in zip(found, grads(model), strict=True):
        torch.testing.assert_close(a, b)


def test_one_loss_may_stand_for_two_tasks():
    model = mlp(5, 6, 3)
    new, old = batches(1)
    same = [lambda: loss(model, *old)] * 2
    projector = Projector(model, gp.GEM())
    projector.backward(lambda: loss(model, *new), same)
    for found, wanted in zip(grads(model), alone(model, gp.GEM(), new, [old]), strict=True):
        torch.testing.assert_close(found, wanted)
    tensor = loss(model, *old)
    with pytest.raises(RuntimeError, match="retain_graph=True"):
        projector.backward(lambda: loss(model, *new), [tensor, tensor])


# Steps that must not go wrong silently -----------------------------------------------------------


@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
def test_an_interrupted_step_leaves_grad_as_it_was(error):
    model = mlp(5, 6, 3)
    new, *old = batches(3)
    projector = Projector(model, gp.GEM())
    expected = alone(model, gp.GEM(), new, old)

    def broken():
        raise error("no such batch")

    losses = [lambda: loss(model, *old[0]), broken]
    with pytest.raises(error):
        projector.backward(lambda: loss(model, *new), losses)
    assert grads(model) == [None] * 4
    projector.backward_batches(loss, new, old)
    before = grads(model)
    with pytest.raises(error):
        projector.backward(loss(model, *new), losses)
    for p, wanted in zip(model.parameters(), before, strict=True):
        assert torch.equal(p.grad, wanted)
    with pytest.raises(gp.NotFiniteError):
        projector.backward(torch.nan * loss(model, *new))
    for p, wanted in zip(model.parameters(), before, strict=True):
        assert torch.equal(p.grad, wanted)
    model.zero_grad()
    projector.backward_batches(loss, new, old)
    for found, wanted in zip(grads(model), expected, strict=True):
        assert torch.equal(found, wanted)


def test_an_optimizer_that_steps_inside_backward_is_refused():
    model = mlp(5, 6, 3)
    optimizers = {p: torch.optim.SGD([p], 0.1) for p in model.parameters()}

    def step(p):
        optimizers[p].step()
        optimizers[p].zero_grad()

    for p in model.parameters():
        p.register_post_accumulate_grad_hook(step)
    new, *old = batches(2)
    with pytest.raises(RuntimeError, match=r"a parameter changed during backward.*call optimizer"):
        Projector(model).backward_batches(loss, new, old)


def test_a_projector_in_use_is_refused_to_others():
    model = mlp(5, 6, 3)
    new, *old = batches(2)
    projector = Projector(model, gp.GEM())
    expected = alone(model, gp.GEM(), new, old)
    inside, done, found = threading.Event(), threading.Event(), []

    def slow():
        inside.set()
        assert done.wait(10)
        return loss(model, *new)

    def other():
        assert inside.wait(10)
        for call in (
            lambda: projector.backward_batches(loss, new, old),
            lambda: projector.store(0),
            projector.project,
            projector.zero_grad,
        ):
            try:
                call()
            except RuntimeError as error:
                found.append(str(error))
        done.set()

    thread = threading.Thread(target=other)
    thread.start()
    projector.backward(slow, [lambda batch=batch: loss(model, *batch) for batch in old])
    thread.join()
    assert len(found) == 4
    assert all("is inside a step already" in message for message in found)
    for a, b in zip(grads(model), expected, strict=True):
        assert torch.equal(a, b)
    with pytest.raises(RuntimeError, match="because a loss called it"):
        projector.backward(lambda: projector.backward(loss(model, *new)))


def test_gradients_stored_by_one_thread_belong_to_it():
    model = mlp(5, 6, 3)
    new, old = batches(1)
    projector = Projector(model)
    thread = threading.Thread(
        target=lambda: (loss(model, *old).backward(), projector.store(0)), daemon=True
    )
    thread.start()
    thread.join()
    loss(model, *new).backward()
    with pytest.raises(RuntimeError, match="another thread has stored gradients"):
        projector.project()
    projector.reset()
    projector.project()


@pytest.mark.parametrize("same", [True, False])
def test_an_update_cannot_be_stored_as_a_gradient(same):
    model = mlp(5, 6, 3)
    new, old = batches(1)
    first = Projector(model)
    second = first if same else Projector(model)
    first.backward_batches(loss, new, [old])
    with pytest.raises(RuntimeError, match=r"\.grad is still the update of an earlier projected"):
        second.store(0)
    model.zero_grad(set_to_none=False)
    loss(model, *old).backward()
    second.store(0)
    first.backward(lambda: loss(model, *new))
    if not same:
        with pytest.raises(RuntimeError, match=r"\.grad is still the update"):
            second.project()


def test_two_projectors_take_turns_on_one_model():
    model = mlp(5, 6, 3)
    new, *old = batches(2)
    expected = alone(model, gp.GEM(), new, old)
    projectors = [Projector(model, gp.GEM()) for _ in range(2)]
    for projector in projectors * 2:
        model.zero_grad(set_to_none=False)
        projector.backward_batches(loss, new, old)
        for found, wanted in zip(grads(model), expected, strict=True):
            torch.testing.assert_close(found, wanted)


class Repeated(nn.Module):
    """A layer that is used three times, recomputed in backward, so that it completes thrice."""

    def __init__(self, reentrant):
        super().__init__()
        self.layer, self.head, self.reentrant = nn.Linear(5, 5), nn.Linear(5, 3), reentrant

    def forward(self, x):
        for _ in range(3):
            if self.reentrant is None:
                x = self.layer(x).relu()
            else:
                x = checkpoint(lambda x: self.layer(x).relu(), x, use_reentrant=self.reentrant)
        return self.head(x)


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("method", METHODS, ids=repr)
def test_a_layer_may_complete_several_times_in_one_backward(method, reentrant):
    answers = []
    for mode in (None, reentrant):
        torch.manual_seed(1)
        model = Repeated(mode)
        new, *old = (
            (x.requires_grad_(), y) for x, y in batches(3)
        )  # reentrant checkpoints need an input with a gradient
        projector = Projector(model, method)
        projector.backward_batches(loss, new, old)
        assert projector.copied == 0
        answers.append(grads(model))
    for a, b in zip(*answers, strict=True):
        torch.testing.assert_close(a, b)


def test_freezing_and_adding_between_steps_leaves_a_defined_grad():
    model = nn.Sequential(nn.Linear(5, 5), nn.Linear(5, 3))
    new, *old = batches(2)
    projector = Projector(model, gp.GEM())
    projector.backward_batches(loss, new, old)
    before = grads(model)
    model[0].requires_grad_(False)
    assert list(projector.layers) == ["1"]
    assert model[0].weight.grad is None
    assert torch.equal(model[1].weight.grad, before[2])
    model[0].requires_grad_(True)
    model.append(nn.Linear(3, 3))
    model.zero_grad()
    expected = alone(model, gp.GEM(), new, old)
    projector.backward_batches(loss, new, old)
    for found, wanted in zip(grads(model), expected, strict=True):
        assert torch.equal(found, wanted)


@pytest.mark.parametrize("method", METHODS, ids=repr)
def test_the_dtype_may_change_between_steps(method):
    model = mlp(5, 6, 3)
    projector = Projector(model, method)
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float32):
        model.to(dtype)
        new, *old = batches(3, dtype=dtype)
        expected = alone(model, method, new, old)
        model.zero_grad()
        projector.backward_batches(loss, new, old)
        for found, wanted in zip(grads(model), expected, strict=True):
            assert found.dtype == dtype
            assert torch.equal(found, wanted)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
def test_the_device_may_change_between_steps():
    model = mlp(5, 6, 3)
    projector = Projector(model, gp.GEM())
    for device in ("cpu", "cuda", "cpu"):
        model.to(device)
        new, *old = ((x.to(device), y.to(device)) for x, y in batches(3))
        expected = alone(model, gp.GEM(), new, old)
        model.zero_grad()
        projector.backward_batches(loss, new, old)
        for found, wanted in zip(grads(model), expected, strict=True):
            assert found.device.type == device
            torch.testing.assert_close(found, wanted)


def test_a_change_of_dtype_keeps_what_was_accumulated():
    model = mlp(5, 6, 3)
    new, *old = batches(2)
    projector = Projector(model, gp.GEM())
    projector.backward_batches(loss, new, old)
    before = grads(model)
    model.double()
    new, *old = batches(2, dtype=torch.float64)
    update = alone(model, gp.GEM(), new, old)
    projector.backward_batches(loss, new, old)
    for found, a, b in zip(grads(model), before, update, strict=True):
        torch.testing.assert_close(found, a.double() + b)


def test_observers_of_quantization_move_only_if_asked():
    quantization = pytest.importorskip("torch.ao.quantization")

    class Observed(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(5, 3)
            self.observer = quantization.MovingAverageMinMaxObserver()
            self.fake = quantization.FakeQuantize()

        def forward(self, x):
            return self.linear(self.fake(self.observer(x)))

    new, *old = batches(2)
    old = [(100 * x, y) for x, y in old]
    ranges = []
    for moves in (True, False):
        model = Observed()
        projector = Projector(model, running_statistics=moves)
        projector.backward_batches(loss, new, old)
        ranges.append((float(model.observer.max_val), float(model.fake.scale)))
    alone = Observed()
    alone(new[0])
    assert ranges[1] == (float(alone.observer.max_val), float(alone.fake.scale))
    assert ranges[0][0] > 10 * ranges[1][0]
    with pytest.raises(ValueError, match="observer is a MovingAverageMinMaxObserver that moves"):
        Projector(Observed(), engine="vmap")


# Data loaders ------------------------------------------------------------------------------------


class Replay(torch.utils.data.Dataset):
    """Draws from a memory inside the workers of a data loader."""

    def __init__(self, memory):
        self.memory = memory

    def __len__(self):
        return 8

    def __getitem__(self, _):
        (x,) = self.memory.sample(0, 4)
        return x


@pytest.mark.filterwarnings("ignore:This process")
@pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning")  # where JAX has been imported
def test_workers_of_a_data_loader_draw_different_samples():
    memory = EpisodicMemory(1000, seed=3)
    memory.add(0, torch.arange(1000))
    draws = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        loader = torch.utils.data.DataLoader(Replay(memory), batch_size=1, num_workers=2)
        draws.append([tuple(x[0].tolist()) for x in loader])
    assert len(set(draws[0])) == 8
    assert draws[0] == draws[1]
    assert not set(draws[0]) & set(draws[2])
    torch.manual_seed(1)
    assert memory.sample(0, 4)[0].tolist() == first_draw(3)


def first_draw(seed):
    """The first draw of a memory that no worker has touched."""
    memory = EpisodicMemory(1000, seed=seed)
    memory.add(0, torch.arange(1000))
    return memory.sample(0, 4)[0].tolist()


# What users see ----------------------------------------------------------------------------------


def test_repr_says_what_there_is():
    model = mlp(5, 6, 3)
    assert repr(Projector(model, gp.GEM())) == (
        "Projector(GEM(strength=0.0), layers=2, engine='loop', backend='numpy')"
    )
    memory = EpisodicMemory(4, "reservoir")
    memory.add("a", torch.zeros(3, 2))
    assert repr(memory) == "EpisodicMemory(tasks=1, samples=3, per_task=4, policy='reservoir')"
