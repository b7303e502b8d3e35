"""What people's losses, hooks and dtypes do around a step, compared with plain autograd."""

import warnings
import weakref

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch_reference import mlp

import gradproj as gp
from gradproj.adapters.torch import EpisodicMemory, Projector, project_gradients

METHODS = [gp.GEM(), gp.AGEM(), gp.Decomposed()]


def batches(count, seed=0):
    torch.manual_seed(seed)
    return [(torch.randn(6, 5), torch.randint(3, (6,))) for _ in range(count + 1)]


def loss(model, x, y):
    return cross_entropy(model(x), y)


def reference(model, loss, new, old, method):
    """The same from gradients that nothing but autograd has touched."""
    parameters = list(model.parameters())

    def gradient(batch):
        return torch.autograd.grad(loss(model, *batch), parameters)

    return project_gradients(
        gradient(new), [gradient(b) for b in old], method, layers=[range(len(parameters))]
    )


def agree(model, expected, **tolerances):
    for p, w in zip(model.parameters(), expected, strict=True):
        torch.testing.assert_close(p.grad, w, **(tolerances or {"rtol": 1e-4, "atol": 1e-6}))


# Losses that do more than return a value ---------------------------------------------------------


@pytest.mark.parametrize("method", METHODS, ids=repr)
def test_a_loss_may_run_backward_itself(method):
    def adversarial(model, x, y):
        moved = x.clone().requires_grad_()
        loss(model, moved, y).backward()  # which adds to whatever `.grad` is now
        return loss(model, x + 0.1 * moved.grad.sign(), y)

    def plain(model, x, y):
        moved = x.clone().requires_grad_()
        (sign,) = torch.autograd.grad(loss(model, moved, y), moved)
        return loss(model, x + 0.1 * sign.sign(), y)

    model = mlp(5, 6, 3)
    new, *old = batches(4)
    expected = reference(model, plain, new, old, method)
    projector = Projector(model, method, layers="all")
    for _ in range(2):  # the second time with what the first has left in `.grad`
        projector.backward_batches(adversarial, new, old)
        agree(model, expected)


@pytest.mark.parametrize("method", METHODS, ids=repr)
def test_a_generator_may_zero_the_gradients_between_losses(method):
    model = mlp(5, 6, 3)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    new, *old = batches(3)
    expected = reference(model, loss, new, old, method)

    def losses():
        for batch in old:
            optimizer.zero_grad(set_to_none=False)
            yield loss(model, *batch)

    Projector(model, method, layers="all").backward(loss(model, *new), losses())
    agree(model, expected)


def test_every_stored_gradient_leaves_no_grad_however_it_came():
    model = mlp(5, 6, 3)
    optimizer = torch.optim.SGD(model.parameters(), 0.0)
    new, *old = batches(3)
    expected = reference(model, loss, new, old, gp.GEM())
    projector = Projector(model, gp.GEM(), layers="all")
    for _ in range(3):
        optimizer.zero_grad(set_to_none=False)
        for task, batch in enumerate(old):
            loss(model, *batch).backward()
            projector.store(task)
        loss(model, *new).backward()
        projector.project()
        agree(model, expected)


def test_a_step_that_is_given_up_can_be_reset():
    model = mlp(5, 6, 3)
    new, *old = batches(4)
    projector = Projector(model, gp.GEM(), layers="all")
    for task, batch in enumerate(old):
        loss(model, *batch).backward()
        projector.store(task)
    projector.reset()
    for task, batch in enumerate(old[:2]):
        loss(model, *batch).backward()
        projector.store(task)
    loss(model, *new).backward()
    projector.project()
    assert projector.last.coefficients.shape == (1, 2)


# Hooks and captured parameters -------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["register_hook", "register_post_accumulate_grad_hook"])
@pytest.mark.parametrize("method", METHODS, ids=repr)
def test_hooks_on_gradients_work_whatever_the_number_of_old_tasks(kind, method):
    model = mlp(5, 6, 3)
    head = list(model.parameters())[-2]

    def mask(given):
        if kind == "register_hook":
            return given * torch.tensor([[1.0], [0.0], [0.5]])
        given.grad.mul_(torch.tensor([[1.0], [0.0], [0.5]]))
        return None

    new, *old = batches(12)
    projector = Projector(model, method, layers="all", engine="auto")
    parameters = list(model.parameters())

    def masked(batch):
        found = list(torch.autograd.grad(loss(model, *batch), parameters))
        found[-2] = found[-2] * torch.tensor([[1.0], [0.0], [0.5]])
        return found

    groups = [range(len(parameters))]
    expected = project_gradients(masked(new), [masked(b) for b in old], method, layers=groups)
    getattr(head, kind)(mask)
    projector.backward_batches(loss, new, old)
    assert projector.engine == "loop"
    agree(model, expected)
    with pytest.raises(ValueError, match="has a hook on its gradient, which vmap would pass over"):
        Projector(model, method, engine="vmap")


def test_a_hook_on_a_parameter_that_has_just_come_is_seen():
    def halve(p):
        p.grad.mul_(0.5)

    def updates(in_a_list):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(5, 4))
        projector = Projector(model, gp.AGEM(), layers="all")
        model.append(nn.Linear(4, 3))
        model[1].weight.register_post_accumulate_grad_hook(halve)
        _, *old = batches(3)
        losses = [lambda batch=batch: loss(model, *batch) for batch in old]
        projector.backward(
            lambda: -sum(loss() for loss in losses), losses if in_a_list else iter(losses)
        )
        assert projector.last.corrected.all()
        return [p.grad for p in model.parameters()]

    for one, other in zip(updates(True), updates(False), strict=True):
        assert torch.equal(one, other)


def test_a_penalty_on_captured_parameters_takes_the_loop():
    model = mlp(5, 6, 3)
    parameters = list(model.parameters())

    def penalised(model, x, y):
        return loss(model, x, y) + 0.5 * sum(p.square().sum() for p in parameters)

    new, *old = batches(12)
    expected = reference(model, penalised, new, old, gp.GEM())
    projector = Projector(model, gp.GEM(), layers="all", engine="auto")
    assert projector.engine == "vmap"
    with pytest.warns(UserWarning, match="it uses parameters other than those of the model"):
        projector.backward_batches(penalised, new, old)
    agree(model, expected)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        projector.backward_batches(penalised, new, old)  # the loop at once, without a word
    agree(model, expected)


class Tempered(nn.Module):
    """A loss with a parameter of its own."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(2.0))

    def forward(self, model, x, y):
        return loss(model, x, y) * self.scale


@pytest.mark.parametrize("method", METHODS, ids=repr)
def test_a_parameter_of_the_loss_gets_the_gradients_of_all_tasks(method):
    model, tempered = mlp(5, 6, 3), Tempered()
    new, *old = batches(12)
    projector = Projector(model, method, engine="auto")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        projector.backward_batches(tempered, new, old)
    expected = sum(loss(model, *batch) for batch in (new, *old))
    torch.testing.assert_close(tempered.scale.grad, expected)


def test_an_error_of_the_loss_itself_is_no_reason_to_leave_vmap():
    def broken(*_):
        raise RuntimeError("no such file")

    model = mlp(5, 6, 3)
    new, *old = batches(12)
    projector = Projector(model, gp.GEM(), engine="auto")
    with pytest.raises(RuntimeError, match="no such file"):
        projector.backward_batches(broken, new, old)
    projector.backward_batches(loss, new, old)
    assert projector.engine == "vmap"


# Sums of the old gradients -----------------------------------------------------------------------


@pytest.mark.parametrize("order", [(0, 1, 2), (1, 2, 0), (1, 0, 2)])
def test_a_sum_is_judged_by_the_longest_that_it_has_been(order):
    model = nn.Linear(3, 1, bias=False)
    rows = torch.tensor([[1e-7, 0.0, 0.0], [0.3, 0.7, 1.1], [-0.3, -0.7, -1.1]])[list(order)]
    projector = Projector(model, gp.AGEM())
    projector.backward_batches(
        lambda model, x: model(x).sum(), (-torch.ones(1, 3),), [(row[None],) for row in rows]
    )
    assert torch.equal(model.weight.grad, -torch.ones(1, 3))


def test_a_skipped_step_does_not_blind_the_next():
    model = nn.Linear(3, 1, bias=False)
    projector = Projector(model, gp.AGEM(), overflow="skip")
    x, new = torch.tensor([[0.3, 0.7, 1.1]]), -torch.ones(1, 3)
    olds = [lambda k=k: k * model(x).sum() for k in (1.1, -0.7, -0.4)]
    projector.backward(lambda: torch.nan * model(new).sum(), olds)
    assert projector.last is None
    projector.backward(lambda: model(new).sum(), olds)
    assert torch.equal(model.weight.grad, new)


# Dtypes and devices ------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["numpy", "torch"])
@pytest.mark.parametrize("method", METHODS, ids=repr)
def test_an_autocast_around_the_step_is_for_the_losses_alone(method, backend):
    model = nn.Linear(2000, 1, bias=False)
    G = torch.randn(3, 2000)
    g = torch.randn(2000) - G.sum(0)
    with torch.autocast("cpu", torch.bfloat16):
        Projector(model, method, backend=backend).backward_batches(
            lambda model, x: (model.weight * x).sum(), (g,), [(row,) for row in G]
        )
    torch.testing.assert_close(model.weight.grad[0], gp.project(g, G, method))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_buffer_from_inference_can_be_trained_with(dtype):
    model = mlp(5, 6, 3).to(dtype)
    new, *old = ((x.to(dtype), y) for x, y in batches(2))
    updates = []
    for inference in (True, False):
        with torch.inference_mode(inference):
            projector = Projector(model, gp.GEM())
            projector.zero_grad(task=0)  # which makes room for its row
        projector.backward_batches(loss, new, old)
        updates.append([p.grad.clone() for p in model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*updates, strict=True))


@pytest.mark.parametrize(("dtype", "rank"), [(torch.float32, 0), (torch.float64, 2)])
def test_differences_beyond_the_precision_of_the_gradients_do_not_count(dtype, rank):
    model = nn.Linear(2000, 1, bias=False).to(dtype)
    G = torch.randn(2000, dtype=dtype) + 1e-5 * torch.randn(3, 2000, dtype=dtype)
    projector = Projector(model)
    projector.backward_batches(
        lambda model, x: (model.weight * x).sum(), (-G[0],), [(row,) for row in G]
    )
    assert projector.last.rank.tolist() == [rank]


def test_an_update_beyond_float16_is_an_overflow():
    model = nn.Linear(2, 1, bias=False).half()
    x = torch.tensor([[60000.0, 0.0]]).half()

    def step(overflow):
        projector = Projector(model, gp.Decomposed(strength=1.0), overflow=overflow)
        projector.backward(lambda: model(x).sum(), [lambda: model(x).sum()])
        return projector

    with torch.no_grad():
        model.weight.zero_()
    with pytest.raises(gp.NotFiniteError, match="the update is beyond float16"):
        step("raise")
    assert step("skip").last is None
    assert model.weight.grad.isnan().all()
    model, x = model.bfloat16(), x.bfloat16()  # which has room for it
    step("raise")
    assert float(model.weight.grad[0, 0]) == 2 * float(x[0, 0])


def test_a_skipped_step_is_marked_in_every_dtype():
    model = mlp(5, 6, 3)
    model[0].bfloat16()

    def one_is_nan():
        outputs = model[2](model[0](torch.randn(4, 5).bfloat16()).float())
        return outputs.sum() + torch.nan * model[2].bias.sum()

    Projector(model, overflow="skip").backward(one_is_nan)
    assert all(p.grad.isnan().all() for p in model.parameters())


def test_a_frozen_sparse_embedding_is_no_obstacle():
    class Net(nn.Module):
        sparse = True  # a name that anybody may use

        def __init__(self):
            super().__init__()
            self.words = nn.Embedding(10, 4, sparse=True)
            self.head = nn.Linear(4, 1)

        def forward(self, x):
            return self.head(self.words(x))

    model = Net()
    with pytest.raises(TypeError, match="words is a Embedding that makes sparse gradients"):
        Projector(model)
    model.words.weight.requires_grad = False
    Projector(model).backward(model(torch.tensor([1, 2])).sum())
    assert model.head.weight.grad is not None


def test_a_model_without_numbers_is_refused():
    with pytest.raises(ValueError, match="parameter 'weight' is on the meta device"):
        Projector(nn.Linear(2, 1, device="meta"))


@pytest.mark.skipif(
    not hasattr(torch.Tensor, "grad_dtype"), reason="this torch has no grad_dtype yet"
)
def test_gradients_of_another_dtype_are_refused():
    model = nn.Linear(2, 1, bias=False).bfloat16()
    model.weight.grad_dtype = torch.float32
    with pytest.raises(TypeError, match=r"its grad_dtype torch\.float32; leave grad_dtype as it"):
        Projector(model)


def test_exchanged_weights_are_let_go():
    model = nn.Linear(3, 3, bias=False)
    numbers = np.ones((3, 3), np.float32)
    model.weight.data = torch.from_numpy(numbers)  # which keeps them alive
    kept, numbers = weakref.ref(numbers), None
    projector = Projector(model)
    projector.backward(model(torch.ones(1, 3)).sum())
    model.weight.data = torch.zeros(3, 3)
    assert kept() is None
    projector.backward(model(torch.ones(1, 3)).sum())


@pytest.mark.filterwarnings("ignore:Using backward.. with create_graph=True")
@pytest.mark.parametrize("aimed", [True, False])
def test_no_graph_is_kept_of_gradients_that_have_one(aimed):
    model = mlp(5, 6, 3)
    new, *old = batches(2)
    expected = reference(model, loss, new, old, gp.GEM())
    projector = Projector(model, gp.GEM(), layers="all")

    def run(batch, task=None):
        if aimed:
            projector.zero_grad(task)
        loss(model, *batch).backward(create_graph=True)

    for task, batch in enumerate(old):
        run(batch, task)
        projector.store(task)
    run(new)
    projector.project()
    assert not any(p.grad.requires_grad for p in model.parameters())
    agree(model, expected)


def test_a_list_of_losses_takes_as_many_rows_as_there_are_tasks():
    model = mlp(5, 6, 3)
    new, *old = batches(8)
    projector = Projector(model, gp.GEM())
    projector.backward_batches(loss, new, old[:3])
    assert len(projector._recorder.gradients.blocks[0].rows) == 4
    projector.backward_batches(loss, new, old)
    assert len(projector._recorder.gradients.blocks[0].rows) == 9


# The memory --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "dtype", [torch.uint16, torch.uint32, torch.uint64, torch.float8_e4m3fn, torch.bool]
)
@pytest.mark.parametrize("shape", [(2,), (2, 2)], ids=str)
@pytest.mark.parametrize("policy", ["last", "reservoir"])
def test_a_memory_takes_any_dtype(dtype, shape, policy):
    memory = EpisodicMemory(3, policy)
    for number in range(5):
        memory.add(0, torch.full(shape, number % 2).to(dtype))
    (x,) = memory.sample(0, 2)
    assert x.dtype == dtype
    assert x.shape == shape


def test_numbers_of_numpy_do_not_spoil_the_state(tmp_path):
    memory = EpisodicMemory(np.int64(4), seed=np.int64(7))
    assert memory.generator.initial_seed() == 7
    memory.add(np.int64(0), torch.ones(2, 1))
    torch.save(memory.state_dict(), tmp_path / "memory.pt")
    again = EpisodicMemory(4)
    again.load_state_dict(torch.load(tmp_path / "memory.pt", weights_only=True))
    assert again.tasks == (0,)


def test_samples_from_inference_can_be_trained_on():
    memory = EpisodicMemory(4)
    with torch.inference_mode():
        memory.add(0, torch.ones(2, 3))
    memory.add(0, torch.ones(1, 3))
    model = nn.Linear(3, 1)
    model(*memory.all(0)).sum().backward()
    assert model.weight.grad is not None


def test_a_state_that_cannot_be_read_changes_nothing():
    memory = EpisodicMemory(4)
    memory.add(0, torch.ones(2, 3))
    state = EpisodicMemory(4).state_dict()
    del state["generator"]
    with pytest.raises(KeyError):
        memory.load_state_dict(state)
    assert memory.tasks == (0,)
    assert len(memory) == 2
