"""The user-defined methods in examples/ inside the torch adapter: they read ‖g‖² and scale g."""

import pytest
import torch
from support.examples import load
from torch.nn.functional import cross_entropy
from torch_reference import gradient, mlp

import gradproj as gp
from gradproj.adapters.torch import Projector, group_parameters

more = load("more_methods")
METHODS = {
    "PCGrad": load("own_method").Surgery,
    "GradVac": lambda: more.GradVac(0.5),
    "MGDA": more.MGDA,
    "CAGrad": more.CAGrad,
    "MEGA": more.MEGA,
}


@pytest.mark.parametrize("layers", ["module", "all"])
@pytest.mark.parametrize("make", METHODS.values(), ids=METHODS)
def test_the_adapter_gives_the_update_of_the_core(make, layers):
    model = mlp(6, 40, 40, 3)
    groups = group_parameters(model, layers).values()
    method, projector = make(), Projector(model, make(), layers)
    for _ in range(2):  # GradVac has a state
        batches = [(torch.randn(5, 6), torch.randint(3, (5,))) for _ in range(4)]
        grads = [gradient(model, cross_entropy(model(x), y)) for x, y in batches]
        flat = [
            [torch.cat([g[n].double().flatten() for n in names]) for names in groups] for g in grads
        ]
        old = [torch.stack(rows) for rows in zip(*flat[1:], strict=True)]
        updates = gp.project_layers(flat[0], old, method)
        losses = [cross_entropy(model(x), y) for x, y in batches]
        model.zero_grad()
        projector.backward(losses[0], losses[1:])
        found = {name: p.grad.double().flatten() for name, p in model.named_parameters()}
        for names, expected, new in zip(groups, updates, flat[0], strict=True):
            w = torch.cat([found[n] for n in names])
            assert (w - expected).norm() <= 1e-4 * new.norm()
