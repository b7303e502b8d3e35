"""Training that was interrupted equals training that was not, bit for bit."""

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
    with pytest.raises(ValueError, match="state is of another method than GEM"):
        projector.load_state_dict(Projector(mlp(2, 2), gp.SGEM()).state_dict())
    with pytest.raises(ValueError, match=r"state has layers .* build the model and the projector"):
        projector.load_state_dict(Projector(mlp(2, 2, 2), gp.GEM()).state_dict())
