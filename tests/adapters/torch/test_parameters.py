"""Which parameters take part in a step: heads, frozen and grown ones, in any memory order."""

import weakref

import numpy as np
import pytest
import torch
from torch import nn
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
    projector = Projector(model, gp.Decomposed())
    projector.backward(model(torch.randn(5, 4), 0).sum(), [model(torch.randn(5, 4), 1).sum()])
    optimizer.step()
    assert torch.equal(model.spare.weight, before)


def test_frozen_parameters_stay_out_and_may_thaw():
    model = mlp(4, 5, 3)
    model[0].requires_grad_(False)
    x = torch.randn(2, 6, 4)
    projector = Projector(model, gp.Decomposed())
    assert list(projector.layers) == ["2"]
    projector.backward(model(x[0]).sum(), [model(x[1]).square().sum()])
    assert model[0].weight.grad is None
    model[0].requires_grad_(True)
    projector.backward(model(x[0]).sum(), [model(x[1]).square().sum()])
    assert list(projector.layers) == ["0", "2"]
    assert model[0].weight.grad is not None


def test_a_model_that_is_all_frozen_is_refused():
    with pytest.raises(ValueError, match=r"no parameter that requires a gradient; .*unfreeze"):
        Projector(mlp(2, 2).requires_grad_(False))


def test_a_head_that_grows_between_steps():
    model = mlp(4, 5, 2)
    projector = Projector(model, gp.Decomposed())
    x = torch.randn(2, 6, 4)
    projector.backward(model(x[0]).sum(), [model(x[1]).square().sum()])
    model.zero_grad()
    model[2] = nn.Linear(5, 7)
    model.append(nn.Linear(7, 2))
    grads = [gradient(model, loss) for loss in (model(x[0]).sum(), model(x[1]).square().sum())]
    projector.backward(model(x[0]).sum(), [model(x[1]).square().sum()])
    assert list(projector.layers) == ["0", "2", "3"]
    assert_grads_equal(model, projected(model, grads[0], grads[1:]))


def test_parameters_that_change_after_store_are_an_error():
    model = mlp(4, 2)
    projector = Projector(model, gp.Decomposed())
    model(torch.randn(3, 4)).sum().backward()
    projector.store(0)
    model[0].bias.requires_grad_(False)
    with pytest.raises(RuntimeError, match=r"parameters changed after store\(\), or the projec"):
        projector.project()


def test_channels_last_and_transposed_parameters_keep_their_memory_order():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 2))
    x = torch.randn(3, 2, 3, 6, 6)
    grads = [gradient(model, model(b).square().sum()) for b in x]
    expected = projected(model, grads[0], grads[1:])
    model = model.to(memory_format=torch.channels_last)
    model[3].weight = nn.Parameter(model[3].weight.detach().t().contiguous().t())
    x = x.flatten(0, 1).to(memory_format=torch.channels_last).unflatten(0, (3, 2))
    projector = Projector(model, gp.Decomposed())
    projector.backward(model(x[0]).square().sum(), (model(b).square().sum() for b in x[1:]))
    for p in model.parameters():
        assert p.grad.stride() == p.stride()
    assert_grads_equal(model, expected)
    assert projector.copied == 0


def test_memory_order_may_change_between_steps():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(64, 2))
    x = torch.randn(2, 3, 6, 6)
    projector = Projector(model, gp.Decomposed())
    projector.backward(model(x).sum())
    model.to(memory_format=torch.channels_last)
    projector.backward(model(x).sum())
    assert model[0].weight.grad.is_contiguous(memory_format=torch.channels_last)


def test_gradients_that_are_not_contiguous_are_taken_by_store():
    model = mlp(4, 3)
    weight, bias = model.parameters()
    expected = torch.randn(4, 3)
    weight.grad, bias.grad = expected.t(), torch.randn(6)[::2]
    projector = Projector(model, gp.Decomposed())
    projector.project()
    assert torch.equal(weight.grad, expected.t())


def test_sparse_gradients_are_refused():
    with pytest.raises(
        TypeError, match=r"1 is a Embedding that makes sparse gradients.*sparse=Fal"
    ):
        Projector(nn.Sequential(nn.Linear(2, 2), nn.Embedding(4, 3, sparse=True)))
    model = nn.Embedding(4, 3)
    projector = Projector(model, gp.Decomposed())
    model.weight.grad = torch.zeros(4, 3).to_sparse()
    with pytest.raises(TypeError, match=r"gradient of a parameter of shape .4, 3. is sparse"):
        projector.store(0)


def test_a_frozen_sparse_embedding_is_no_obstacle():
    class Net(nn.Module):
        sparse = True  # a name that user-defined modules may use

        def __init__(self):
            super().__init__()
            self.words = nn.Embedding(10, 4, sparse=True)
            self.head = nn.Linear(4, 1)

        def forward(self, x):
            return self.head(self.words(x))

    model = Net()
    with pytest.raises(TypeError, match="words is a Embedding that makes sparse gradients"):
        Projector(model, gp.Decomposed())
    model.words.weight.requires_grad = False
    Projector(model, gp.Decomposed()).backward(model(torch.tensor([1, 2])).sum())
    assert model.head.weight.grad is not None


def test_complex_parameters_are_refused_unless_they_are_frozen():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2, dtype=torch.complex64))
    with pytest.raises(TypeError, match=r"parameter '1.weight' is complex .torch.complex64. and"):
        Projector(model, gp.Decomposed())
    model[1].requires_grad_(False)
    projector = Projector(model, gp.Decomposed())
    model[1].requires_grad_(True)  # seen at the next step, as all that changes between steps
    with pytest.raises(TypeError, match=r"torch.view_as_real, or freeze it"):
        projector.backward(model[0](torch.ones(1, 2)).sum())


def test_a_model_without_numbers_is_refused():
    with pytest.raises(ValueError, match="parameter 'weight' is on the meta device"):
        Projector(nn.Linear(2, 1, device="meta"))


def test_exchanged_weights_are_let_go():
    model = nn.Linear(3, 3, bias=False)
    numbers = np.ones((3, 3), np.float32)
    model.weight.data = torch.from_numpy(numbers)  # which keeps them alive
    kept, numbers = weakref.ref(numbers), None
    projector = Projector(model, gp.Decomposed())
    projector.backward(model(torch.ones(1, 3)).sum())
    model.weight.data = torch.zeros(3, 3)
    assert kept() is None
    projector.backward(model(torch.ones(1, 3)).sum())
