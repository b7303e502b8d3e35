"""The functional form on lists of tensors equals the projector."""

import pytest
import torch

import gradproj as gp
from gradproj.adapters.torch import Projector, project_gradients


def model_and_losses():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(5, 4), torch.nn.Tanh(), torch.nn.Linear(4, 3))
    batches = [torch.randn(6, 5) for _ in range(4)]
    signs = (1, -1, 1, -1)
    return model, [
        lambda b=b, s=s: s * model(b).square().sum() for b, s in zip(batches, signs, strict=True)
    ]


@pytest.mark.parametrize(
    ("layers", "groups"), [("tensor", None), ("module", [[0, 1], [2, 3]]), ("all", [[0, 1, 2, 3]])]
)
@pytest.mark.parametrize("method", [gp.Decomposed(), gp.GEM(0.5), gp.AGEM()], ids=repr)
def test_equals_the_projector(layers, groups, method):
    model, losses = model_and_losses()
    parameters = list(model.parameters())
    gradients = [torch.autograd.grad(loss(), parameters) for loss in losses]
    kept = [g.clone() for g in gradients[0]]
    updates = project_gradients(gradients[0], gradients[1:], method, groups)
    Projector(model, method, layers=layers).backward(losses[0](), losses[1:])
    for w, p, g, before in zip(updates, parameters, gradients[0], kept, strict=True):
        assert torch.allclose(w, p.grad, atol=1e-5)
        assert w.shape == p.shape
        assert torch.equal(g, before)


def test_no_old_task():
    new = [torch.ones(2, 2), torch.ones(3)]
    assert all(torch.equal(a, b) for a, b in zip(project_gradients(new, []), new, strict=True))


@pytest.mark.parametrize(
    ("layers", "groups"), [("tensor", None), ("child", [[0, 1], [2, 3], [4, 5]])]
)
def test_none_is_zero_and_unused_parameters_stay_none(layers, groups):
    model = torch.nn.ModuleList(torch.nn.Linear(4, 3) for _ in range(3))
    new, *old = torch.randn(3, 5, 4)
    losses = [model[0](new).square().sum(), *(model[1](x).square().sum() for x in old)]
    losses[1] = losses[1] + model[0](old[0]).sum()
    parameters = list(model.parameters())
    gradients = [
        torch.autograd.grad(loss, parameters, allow_unused=True, retain_graph=True)
        for loss in losses
    ]
    assert [g is None for g in gradients[0]] == [False, False, True, True, True, True]
    method = gp.Decomposed(strength=0.5)  # which moves parameters that only old tasks use
    updates = project_gradients(gradients[0], gradients[1:], method, groups)
    Projector(model, method, layers).backward(losses[0], losses[1:])
    for w, p in zip(updates[:4], parameters, strict=False):
        assert torch.allclose(w, p.grad, atol=1e-5)
    assert updates[2].abs().sum() > 0
    assert updates[4:] == [p.grad for p in parameters[4:]] == [None, None]


def test_bad_input():
    new = [torch.ones(2), torch.ones(3)]
    with pytest.raises(ValueError, match=r"layers=\[\[0\]\] should hold each position from 0 to 1"):
        project_gradients(new, [new], layers=[[0]])
    with pytest.raises(
        ValueError, match=r"old\[1\] has shapes \[\(2,\)\] and new \[\(2,\), \(3,\)"
    ):
        project_gradients(new, [new, new[:1]])
    with pytest.raises(
        TypeError, match=r"old\[0\]\[1\] is torch.float64 on cpu and new\[0\] torch"
    ):
        project_gradients(new, [[None, torch.ones(3).double()]])
    with pytest.raises(ValueError, match=r"old\[0\] has shapes \[\(3,\), None\] and new"):
        project_gradients(new, [[torch.ones(3), None]])
    with pytest.raises(ValueError, match=r"old\[1\] has shapes \[\(3,\)\] and new \[\(2,\)\];"):
        project_gradients([None], [[torch.ones(2)], [torch.ones(3)]])
    with pytest.raises(ValueError, match=r"old\[0\] has shapes \[None, \(3,\)\] and new \[None\]"):
        project_gradients([None], [[None, torch.ones(3)]])
    with pytest.raises(TypeError, match="new is a Tensor; pass a list with one tensor per par"):
        project_gradients(new[0], [new[0]])  # would be two layers of one number each
    with pytest.raises(TypeError, match=r"old\[0\] is a Tensor; pass a list with one tensor per p"):
        project_gradients(new[:1], torch.ones(1, 1, 2))
    with pytest.raises(TypeError, match=r"old\[0\]\[1\] is a float; pass tensors, or None"):
        project_gradients(new, [[None, 1.0]])
