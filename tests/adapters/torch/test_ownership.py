"""Interrupted steps, and several threads, projectors or optimizers on one model."""

import threading

import pytest
import torch
from torch_reference import mlp
from torch_steps import alone, batches, grads, loss

import gradproj as gp
from gradproj.adapters.torch import Projector


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
