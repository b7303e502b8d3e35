"""Steps that fail or are called in the wrong order: they do not affect the next step."""

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch_reference import mlp

import gradproj as gp
from gradproj.adapters.torch import (
    Projector,
    group_parameters,
    herd,
    keep_running_statistics,
    project_gradients,
)

METHODS = [gp.Decomposed(), gp.GEM(), gp.AGEM()]


def line(*numbers):
    """A model of one weight vector, whose gradient of `model(x).sum()` is x."""
    model = nn.Linear(len(numbers), 1, bias=False)
    return model, torch.tensor([numbers])


def run(model, x):
    model(torch.as_tensor(x)[None]).sum().backward()


@pytest.mark.parametrize("method", METHODS, ids=repr)
def test_old_gradients_next_to_nothing_do_not_overflow(method):
    # A loss that is almost zero: its gradient is subnormal and its coefficient beyond float32.
    model = nn.Linear(4, 2)
    with torch.no_grad():
        model.weight.zero_()
        model.bias.zero_()
        model.weight[:, 0] = torch.tensor([50.0, -50.0])
    x = torch.zeros(16, 4)
    x[:, 0] = 0.97
    old = x, torch.zeros(16).long()
    new = torch.randn(16, 4), torch.ones(16).long()

    def loss(model, x, y):
        return cross_entropy(model(x), y)

    parameters = list(model.parameters())
    given, kept = (torch.autograd.grad(loss(model, *b), parameters) for b in (new, old))
    assert 0 < kept[0].abs().max() < 1e-38
    Projector(model, method).backward_batches(loss, new, [old])
    both = project_gradients(given, [kept], method, layers=[[0, 1]])
    assert all(p.grad.isfinite().all() for p in parameters)
    model.zero_grad()
    Projector(model, method, layers="all").backward_batches(loss, new, [old])
    for p, expected in zip(parameters, both, strict=True):
        assert torch.allclose(p.grad, expected, rtol=1e-3, atol=1e-5)


def test_what_is_stored_is_out_of_reach():
    model, x = line(1.0, 0.0)
    projector = Projector(model, gp.GEM())
    projector.zero_grad(task=0)
    run(model, [-1.0, 1.0])
    projector.store(0)
    assert model.weight.grad is None
    model.zero_grad(set_to_none=False)  # would once have zeroed the row
    model(x).sum().backward()
    projector.project()
    assert torch.equal(model.weight.grad, torch.tensor([[0.5, 0.5]]))


def test_a_new_gradient_that_came_first_is_missed_and_not_mistaken():
    model, x = line(1.0, 0.0)
    projector = Projector(model)
    projector.zero_grad()
    model(x).sum().backward()
    projector.zero_grad(task=0)
    run(model, [-3.0, -3.0])
    projector.store(0)
    with pytest.raises(ValueError, match="run the new task's loss backward after the old tasks'"):
        projector.project()


@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
def test_an_error_in_a_loss_leaves_nothing_behind(error):
    model, x = line(1.0, 0.0)

    def broken():
        raise error("no such batch")

    old = [lambda: model(torch.tensor([[-1.0, 1.0]])).sum(), broken]
    projector = Projector(model)
    for loss in (lambda: model(x).sum(), model(x).sum()):
        with pytest.raises(error, match="no such batch"):
            projector.backward(loss, old)
        model.zero_grad()
        model(x).sum().backward()
        projector.project()
        assert projector.last.coefficients.shape == (1, 0)
        assert torch.equal(model.weight.grad, x)


def test_what_was_stored_does_not_count_in_a_step_of_its_own():
    model, x = line(1.0, 0.0)
    projector = Projector(model)
    for task in range(3):
        run(model, [-1.0, 1.0])
        projector.store(task)
    projector.backward(lambda: model(x).sum(), [lambda: model(x).sum()])
    assert projector.last.coefficients.shape == (1, 1)


def test_a_missing_task_is_named_and_can_be_stored_then():
    model, x = line(1.0, 0.0)
    projector = Projector(model)
    run(model, [0.0, 1.0])
    projector.store(2)
    model.zero_grad()
    run(model, [5.0, 5.0])
    with pytest.raises(ValueError, match=r"task=0 has not been .* store\(0\) to store\(2\) come"):
        projector.project()
    for task, old in enumerate(([-1.0, 0.0], [-1.0, 0.0])):
        model.zero_grad()
        run(model, old)
        projector.store(task)
    model.zero_grad()
    model(x).sum().backward()
    projector.project()
    assert model.weight.grad.abs().sum() <= 1  # of [1, 0], not of [5, 5]


def test_a_frozen_parameter_is_not_moved_by_what_an_earlier_step_left():
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    projector = Projector(model)
    x = torch.randn(5, 3)

    def step():
        projector.backward(lambda: model(x).sum(), [lambda: model(x).mean()])
        optimizer.step()

    step()
    model[0].requires_grad_(False)
    before = model[0].weight.clone()
    step()
    assert model[0].weight.grad is None
    assert torch.equal(model[0].weight, before)


def test_an_update_is_still_there_after_the_model_has_grown():
    model = nn.Sequential(nn.Linear(3, 4))
    projector = Projector(model)
    projector.backward(model(torch.randn(5, 3)).sum())
    update = model[0].weight.grad.clone()
    model.append(nn.Linear(4, 2))
    assert list(projector.layers) == ["0", "1"]
    assert torch.equal(model[0].weight.grad, update)


def test_a_state_saved_after_the_model_has_grown_can_be_loaded():
    model = nn.ModuleDict({"body": nn.Linear(4, 5), "heads": nn.ModuleList([nn.Linear(5, 2)])})
    projector = Projector(model, gp.SGEM())
    model["heads"].append(nn.Linear(5, 2))
    assert "heads.1" in projector.layers
    state = projector.state_dict()
    projector.load_state_dict(state)
    Projector(model, gp.SGEM()).load_state_dict(state)


@pytest.mark.parametrize("order", [[0, 1, 2, 3, 4], [1, 2, 3, 4, 0], [0, 1, 4, 2, 3]])
@pytest.mark.parametrize("method", [gp.AGEM(), gp.Decomposed(rank=0)], ids=repr)
def test_a_sum_that_cancels_is_no_direction_whichever_task_comes_first(method, order):
    a, b, c = torch.randn(3, 50)
    G = torch.stack([torch.zeros(50), a, b, c, -(a + b + c)])[order]
    g = torch.randn(50)
    model = nn.Linear(50, 1, bias=False)
    Projector(model, method).backward(model(g).sum(), [model(row).sum() for row in G])
    assert torch.equal(model.weight.grad[0], g)


@pytest.mark.parametrize(
    ("losses", "error", "message"),
    [
        (
            lambda m, x: [m(x).sum(), m(x)],
            ValueError,
            r"old_losses\[1\] has shape \(2, 3\); a loss",
        ),
        (lambda m, x: [m(x).sum().detach()], ValueError, r"old_losses\[0\] does not depend on a"),
        (lambda m, x: m(x).sum(), TypeError, "old_losses is a Tensor; pass a list with one loss"),
        (lambda m, x: lambda: m(x).sum(), TypeError, "old_losses is a function; pass a list"),
    ],
)
def test_losses_that_cannot_be_run_backward_are_named(losses, error, message):
    model, x = nn.Linear(4, 3), torch.randn(2, 4)
    with pytest.raises(error, match=message):
        Projector(model).backward(model(x).sum(), losses(model, x))


@pytest.mark.parametrize(
    ("new", "old", "message"),
    [
        (lambda x: x[0], lambda x: [(x[1],)], "new is a Tensor; pass a tuple of what the loss"),
        (lambda x: (x[0],), lambda x: x[1:], r"old is a Tensor; pass a list with one batch per"),
        (lambda x: (x[0],), lambda x: (x[1],), r"old\[0\] is a Tensor; .* one batch: \[\(x, y\)\]"),
        (lambda x: (x[0],), lambda _: None, r"old is a NoneType; .* or \[\] without old tasks"),
        (lambda x: (x[0],), lambda _: 3, "old is a int; pass a list with one batch per old task"),
        (lambda _: 3, lambda _: [], r"new is a int; .* or \(x,\) for one thing, or a dict"),
        (lambda x: (x[0],), lambda x: {7: (x[1],)}, r"old is a dict; pass a list with one batch"),
    ],
)
def test_a_batch_that_would_fall_apart_is_refused(new, old, message):
    x = torch.randn(2, 1, 4)  # of one sample: its row alone would pass for a batch
    with pytest.raises(TypeError, match=message):
        Projector(nn.Linear(4, 3)).backward_batches(
            lambda model, x: model(x).square().sum(), new(x), old(x)
        )


@pytest.mark.parametrize("engine", ["loop", "vmap", "auto"])
def test_batches_may_come_from_a_generator(engine):
    model, x = nn.Linear(4, 3), torch.randn(3, 2, 4)
    Projector(model, engine=engine).backward_batches(
        lambda model, x: model(x).square().sum(), (x[0],), ((old,) for old in x[1:])
    )
    assert model.weight.grad is not None


def test_the_draw_of_sgem_survives_a_change_of_engine():
    def awkward(model, x):
        return model(x).square().sum() * (2.0 if x.sum().item() else 1.0)

    x = torch.randn(12, 2, 4)
    states = []
    for engine in ("loop", "auto"):
        method = gp.SGEM(seed=3)
        model = nn.Linear(4, 3)
        Projector(model, method, engine=engine).backward_batches(
            awkward, (x[0],), [(old,) for old in x[1:]]
        )
        states.append(method.generator.bit_generator.state)
    assert states[0] == states[1]


@pytest.mark.parametrize("task", [1.5, "a"])
def test_a_task_is_a_whole_number(task):
    with pytest.raises(TypeError, match=f"task is a {type(task).__name__}; old tasks are numbered"):
        Projector(nn.Linear(2, 1)).store(task)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"method": "gem"}, TypeError, r"method is a str; pass a method such as gp.Decomposed\(\)"),
        ({"method": gp.GEM}, TypeError, "method is the class GEM; pass a method such as"),
        ({"engine": "jit"}, ValueError, "engine='jit' is not known; use 'auto', 'loop', 'vmap'"),
        ({"overflow": "ignore"}, ValueError, "overflow='ignore' is not known; use 'raise', 'skip'"),
        ({"distributed": "ddp"}, ValueError, "distributed='ddp' is not known; use None, 'average'"),
        ({"distributed": "average"}, RuntimeError, r"call init_process_group\(\) first"),
    ],
)
def test_wrong_arguments_say_what_is_wrong(arguments, error, message):
    with pytest.raises(error, match=message):
        Projector(mlp(2, 2), **arguments)


def test_a_model_that_is_not_a_module_is_refused():
    with pytest.raises(TypeError, match=r"model is a generator; pass the torch.nn.Module itself"):
        Projector(mlp(2, 2).parameters())
    with pytest.raises(TypeError, match=r"model is the class Linear; pass the torch.nn.Module"):
        Projector(nn.Linear)


def test_functions_name_the_argument_of_a_wrong_type():
    with pytest.raises(TypeError, match=r"model is a list; pass the torch\.nn\.Module"):
        group_parameters([nn.Linear(1, 1)], "module")
    with (
        pytest.raises(TypeError, match=r"model is a int; pass the torch\.nn\.Module"),
        keep_running_statistics(1),
    ):
        pass
    with pytest.raises(TypeError, match=r"features is a list: expected a floating-point tensor"):
        herd([[0.0]])
    with pytest.raises(TypeError, match=r"features is torch\.float32 of shape \(3,\): expected"):
        herd(torch.ones(3))
    with pytest.raises(
        ValueError, match=r"state has no \['layers', 'method'\]: pass the state_dict"
    ):
        Projector(nn.Linear(1, 1)).load_state_dict({})


def test_a_loss_that_is_not_a_function_is_refused():
    model, x = nn.Linear(4, 3), torch.randn(2, 4)
    with pytest.raises(TypeError, match="loss is a Tensor; pass the function itself"):
        Projector(model).backward_batches(model(x).sum(), (x,))


def test_wrong_losses_and_tasks_say_what_is_wrong():
    model = mlp(2, 2)
    projector = Projector(model)
    with pytest.raises(TypeError, match=r"old_losses\[0\] is a float; pass a scalar tensor or a f"):
        projector.backward(model(torch.ones(1, 2)).sum(), [lambda: 1.0])
    with pytest.raises(ValueError, match="task=-1 is invalid; old tasks are numbered 0, 1, 2"):
        projector.store(-1)
    model(torch.ones(1, 2)).sum().backward()
    projector.store(1)
    with pytest.raises(ValueError, match="task=0 has not been stored but a later one has"):
        projector.project()
