"""Training that was interrupted, or copied, equals training that was not, bit for bit."""

import copy
import io
import pickle

import pytest
import torch
from torch.nn.functional import cross_entropy
from torch_reference import mlp

import gradproj as gp
from gradproj.adapters.torch import EpisodicMemory, Projector


class Training:
    def __init__(self, method):
        self.model = mlp(6, 8, 3)
        self.optimizer = torch.optim.SGD(self.model.parameters(), 0.05, momentum=0.9)
        self.projector = Projector(self.model, method())
        self.memory = EpisodicMemory(10, "reservoir", seed=2)

    def steps(self, first, last):
        for step in range(first, last):
            draw = torch.Generator().manual_seed(step)
            x, y = torch.randn(5, 6, generator=draw), torch.randint(3, (5,), generator=draw)
            old = [self.memory.sample(task, 4) for task in self.memory.tasks]
            self.optimizer.zero_grad()
            self.projector.backward_batches(lambda m, x, y: cross_entropy(m(x), y), (x, y), old)
            self.optimizer.step()
            self.memory.add(step // 5, x, y)

    def parts(self):
        return self.model, self.optimizer, self.projector, self.memory


@pytest.mark.parametrize("method", [gp.SGEM, gp.GEM, lambda: gp.Decomposed(rank=2, strength=0.1)])
def test_resumed_training_is_uninterrupted_training(method, tmp_path):
    whole = Training(method)
    whole.steps(0, 20)
    before = Training(method)
    before.steps(0, 13)
    torch.save([part.state_dict() for part in before.parts()], tmp_path / "state.pt")
    after = Training(method)
    states = torch.load(tmp_path / "state.pt", weights_only=True)
    for part, state in zip(after.parts(), states, strict=True):
        part.load_state_dict(state)
    after.steps(13, 20)
    for a, b in zip(whole.model.parameters(), after.model.parameters(), strict=True):
        assert torch.equal(a, b)


def test_the_draws_of_sgem_are_in_the_state():
    first, second = Projector(mlp(2, 2), gp.SGEM()), Projector(mlp(2, 2), gp.SGEM())
    first.method.generator.integers(10, size=3)
    second.load_state_dict(first.state_dict())
    assert first.method.generator.integers(1 << 60) == second.method.generator.integers(1 << 60)


def test_a_state_of_something_else_is_refused():
    projector = Projector(mlp(2, 2), gp.GEM())
    with pytest.raises(ValueError, match="but GEM has no state: load it into the method"):
        projector.load_state_dict(Projector(mlp(2, 2), gp.SGEM()).state_dict())
    with pytest.raises(ValueError, match=r"state has layers .* build the model and the projector"):
        projector.load_state_dict(Projector(mlp(2, 2, 2), gp.GEM()).state_dict())


def saved_and_loaded(projector):
    file = io.BytesIO()
    torch.save(projector, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


def step(projector, tasks=3):
    """Make one projected step and return its gradients."""
    x = torch.randn(tasks + 1, 5, 6, generator=torch.Generator().manual_seed(tasks))
    model = projector.model
    model.zero_grad()
    projector.backward(model(x[0]).square().sum(), (model(b).square().sum() for b in x[1:]))
    return [p.grad.clone() for p in model.parameters()]


@pytest.mark.parametrize("steps", [0, 1])
@pytest.mark.parametrize(
    "copied",
    [copy.deepcopy, lambda projector: pickle.loads(pickle.dumps(projector)), saved_and_loaded],
    ids=["deepcopy", "pickle", "torch.save"],
)
@pytest.mark.parametrize("method", [gp.SGEM(), gp.Decomposed(rank=2, strength=0.1)], ids=repr)
def test_a_copy_goes_on_as_the_original_does(method, copied, steps):
    original = Projector(mlp(6, 8, 3), method, layers="child")
    for _ in range(steps):
        step(original)
    other = copied(original)
    assert other.model is not original.model
    assert (other.layers, other.backend) == (original.layers, original.backend)
    for tasks in (3, 5):
        for a, b in zip(step(original, tasks), step(other, tasks), strict=True):
            assert torch.equal(a, b)


def test_a_copy_has_a_buffer_of_its_own():
    original = Projector(mlp(6, 8, 3))
    step(original)
    other = copy.deepcopy(original)
    expected = [p.grad.clone() for p in original.model.parameters()]
    step(other, tasks=2)
    for p, before in zip(original.model.parameters(), expected, strict=True):
        assert torch.equal(p.grad, before)
    buffers = [
        {p.grad.untyped_storage().data_ptr() for p in each.model.parameters()}
        for each in (original, other)
    ]
    assert [len(each) for each in buffers] == [1, 1]
    assert buffers[0] != buffers[1]


def test_a_model_that_holds_its_projector_can_be_copied():
    model = mlp(6, 8, 3)
    model.projector = Projector(model)
    step(model.projector)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert other.projector.model is other
        for a, b in zip(step(model.projector), step(other.projector), strict=True):
            assert torch.equal(a, b)


def test_a_copy_does_not_pretend_to_have_what_was_stored():
    projector = Projector(mlp(6, 3))
    projector.model(torch.ones(1, 6)).sum().backward()
    projector.store(0)
    other = copy.deepcopy(projector)
    other.model(torch.ones(1, 6)).sum().backward()
    with pytest.raises(RuntimeError, match=r"or the projector was copied; store the old tasks'"):
        other.project()
