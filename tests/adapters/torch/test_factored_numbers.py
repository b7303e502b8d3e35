"""Accuracy of products and updates from pairs."""

import numpy as np
import pytest
import torch
from factored_reference import classify, formed, mlp, recorded
from torch import nn

import gradproj as gp
from gradproj.adapters.torch import group_parameters
from gradproj.adapters.torch._engines import pair_algebra
from gradproj.adapters.torch._engines.factored import Factored


@pytest.mark.usefixtures("always")
class TestNumbers:
    def cancelling(self, kappa, dtype, tasks=3):
        """Pairs whose sum is 1/kappa of their size, and the exact products of their gradients."""
        model = nn.Linear(40, 30, bias=False).to(dtype)
        factored = Factored(model)
        exact = []
        with factored.step(tasks):
            for task in (*range(tasks), None):
                x, d = torch.randn(8, 40, dtype=dtype), torch.randn(8, 30, dtype=dtype)
                dx = torch.randn(8, 40, dtype=dtype) / kappa if kappa else torch.zeros(8, 40)
                x, d = torch.cat([x, x + dx]), torch.cat([d, -d])
                loss = (model(x.requires_grad_()) * d).sum()
                factored.choose()
                with factored.recording(task):
                    loss.backward()
                x = x.detach().numpy().astype(np.longdouble)
                exact.append(np.einsum("ri,rj->ij", d.numpy().astype(np.longdouble), x).ravel())
        G = np.stack(exact)
        return factored, model.weight, G @ G.T

    @pytest.mark.parametrize("kappa", [1, 448, 1e4])
    def test_cancellation_within_a_task(self, kappa):
        factored, p, Q = self.cancelling(kappa, torch.float32)
        products = factored.products(p)
        lengths = np.sqrt(np.diag(Q))[:-1]
        error = abs(products.C - Q[:-1, :-1]) / np.outer(lengths, lengths)
        assert products.tolerance == 5e-6
        assert error.max() < 1e-7

    @pytest.mark.parametrize("kappa", [1, 10, 448, 1e6])
    def test_tolerance_covers_the_error_in_float64(self, kappa):
        factored, p, Q = self.cancelling(kappa, torch.float64)
        products = factored.products(p)
        lengths = np.sqrt(np.diag(Q))[:-1]
        error = abs(products.C - Q[:-1, :-1]) / np.outer(lengths, lengths)
        assert error.max() < products.tolerance + 1e-9 * (kappa > 1e3)
        assert products.tolerance < 1e-8

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_gradients_of_which_nothing_is_left(self, dtype):
        factored, p, _ = self.cancelling(0, dtype)
        products = factored.products(p)
        assert abs(products.C).max() <= (1e-25 if dtype == torch.float64 else 0)
        assert float(factored.combine(p, [1.0, 1.0, 1.0]).norm()) < 1e-4
        solution = gp.Decomposed(strength=0.5).solve(products)
        assert np.isfinite(solution.coefficients).all()

    @pytest.mark.parametrize("value", [np.nan, np.inf])
    @pytest.mark.parametrize("task", [0, 1, None])
    def test_not_finite(self, value, task):
        net = nn.Sequential(nn.Embedding(30, 6), nn.Linear(6, 4))
        losses = {
            t: lambda t=t: net(torch.arange(3)).sum() * (value if t == task else 1.0)
            for t in (0, 1, None)
        }
        factored, _ = recorded(net, losses)
        for p in (net[0].weight, net[1].weight):
            products = factored.products(p)
            assert not (products.finite and np.isfinite(products.square))

    def test_out(self):
        model = mlp()
        factored, _ = recorded(model, classify(model, [4, 4, 4]))
        p = model[2].weight
        out = torch.full_like(p, torch.nan)
        found = factored.combine(p, [1.0, 2.0], 3.0, out=out)
        assert found is out
        torch.testing.assert_close(out, factored.combine(p, [1.0, 2.0], 3.0))
        out = torch.empty(p.shape[::-1]).T
        torch.testing.assert_close(factored.combine(p, [1.0, 2.0], 3.0, out=out), found)
        with pytest.raises(KeyError):
            factored.products(model[0].bias)


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("method", [gp.Decomposed(strength=0.5), gp.GEM(0.1)], ids=repr)
@pytest.mark.parametrize(
    "layers",
    [
        "module",
        "tensor",
        "all",
        [["0.weight", "4.bias"], ["2.bias", "2.weight", "0.bias", "4.weight"]],
    ],
    ids=["module", "tensor", "all", "groups"],
)
def test_layers_that_mix_both_forms(layers, method):
    """The products of a layer are the sum over its parameters, factored or not."""
    model = mlp(torch.float64)
    losses = classify(model, [5, 4, 6, 3], dtype=torch.float64)
    expected = formed(model, losses)
    factored, others = recorded(model, losses)
    for members in group_parameters(model, layers).values():
        rows = [torch.cat([expected[t][n].flatten() for n in members]) for t in losses]
        w = gp.project(rows[-1].numpy(), torch.stack(rows[:-1]).numpy(), method)
        total = None
        for name in members:
            p = model.get_parameter(name)
            if p in factored.choose():
                products = factored.products(p)
            else:
                flat = [others[t][name].flatten().numpy() for t in losses]
                products = gp.measure(flat[-1], np.stack(flat[:-1]))
            total = products if total is None else total + products
        solution = method.solve(total)
        parts = []
        for name in members:
            p = model.get_parameter(name)
            if p in factored.choose():
                parts.append(factored.combine(p, solution.coefficients, solution.scale).flatten())
            else:
                flat = torch.stack([others[t][name].flatten() for t in losses])
                weights = torch.tensor([*solution.coefficients, float(solution.scale)])
                parts.append(weights @ flat)
        np.testing.assert_allclose(torch.cat(parts).numpy(), w, rtol=0, atol=1e-9 * abs(w).max())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_inner_products_across_blocks_of_rows(dtype):
    rows = 2 * pair_algebra._ROWS + 300  # three blocks, and every task has rows in each of them
    inputs, outputs = torch.randn(rows, 3, dtype=dtype), torch.randn(rows, 2, dtype=dtype)
    owner = torch.arange(rows) % 4
    A, D = inputs.double(), outputs.double()
    G = torch.stack([D[owner == t].T @ A[owner == t] for t in range(4)])
    found, _ = pair_algebra.linear_gram(inputs, outputs, owner, 4)
    torch.testing.assert_close(found, G.flatten(1) @ G.flatten(1).T, rtol=1e-11, atol=1e-9)
