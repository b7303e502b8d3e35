"""Compare pairs of inputs and output gradients with gradients in the usual form."""

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

from gradproj.adapters.torch._engines.factored import Factored
from gradproj.adapters.torch._engines.pair_layers import Call

EXACT = {torch.float32: 1e-6, torch.float64: 1e-12, torch.bfloat16: 2e-2}
MLP = ["0.weight", "2.weight", "4.weight"]  # the weights of `mlp`


def formed(model, losses):
    """Gradients in the usual form: task to name to gradient, or None without one."""
    found = {}
    for task, loss in losses.items():
        torch.manual_seed(hash(task) % 1000)
        model.zero_grad()
        loss().backward()
        found[task] = {n: None if p.grad is None else p.grad.clone() for n, p in named(model)}
    model.zero_grad()
    return found


def recorded(model, losses, factored=None):
    """Run the same losses with pairs; return the recorder and the gradients in the usual form."""
    factored = factored or Factored(model)
    found = {}
    with factored.step(len(losses) - 1):
        for task, loss in losses.items():
            torch.manual_seed(hash(task) % 1000)
            model.zero_grad()
            value = loss() if callable(loss) else loss
            factored.choose()
            with factored.recording(task):
                value.backward()
            found[task] = {n: None if p.grad is None else p.grad.clone() for n, p in named(model)}
    return factored, found


def restored(model):
    return not any(isinstance(m.forward, Call) for m in model.modules())


def named(model):
    return [(n, p) for n, p in model.named_parameters() if p.requires_grad]


def check(model, losses, chosen, dtype=torch.float32, factored=None, given=None):
    """All gradients, products and updates agree; `chosen` names the factored parameters."""
    expected = formed(model, losses)
    factored, others = recorded(model, given or losses, factored)
    names = {id(p): n for n, p in model.named_parameters()}
    assert {names[id(p)] for p in factored.choose()} == set(chosen)
    for name, p in named(model):
        rows = [expected[task][name] for task in losses]
        if name not in chosen:
            for task, row in zip(losses, rows, strict=True):
                assert (others[task][name] is None) == (row is None)
                if row is not None:
                    close(others[task][name], row, dtype)
            continue
        assert all(others[task][name] is None for task in losses)
        assert factored.used(p) == any(row is not None for row in rows)
        rows = [torch.zeros_like(p) if row is None else row for row in rows]
        agree(factored, p, list(losses), rows, dtype)
    assert restored(model)
    return factored


def agree(factored, p, tasks, rows, dtype):
    *order, new = [rows[tasks.index(t)] for t in (*range(len(tasks) - 1), None)]
    G = torch.stack([r.double().flatten() for r in (*order, new)])
    T = len(order)
    products, Q = factored.products(p), (G @ G.T).numpy()
    lengths = np.sqrt(np.diag(Q)).clip(1e-30)
    scale = np.outer(lengths, lengths)
    assert (abs(products.C - Q[:T, :T]) <= EXACT[dtype] * scale[:T, :T]).all()
    assert (abs(products.h - Q[:T, T]) <= EXACT[dtype] * scale[:T, T]).all()
    assert abs(products.square - Q[T, T]) <= EXACT[dtype] * scale[T, T]
    c = np.linspace(-1, 2, T)
    w = factored.combine(p, c, 0.7)
    assert w.dtype == p.dtype
    assert w.shape == p.shape
    expected = (torch.tensor([*c, 0.7]) @ G).view(p.shape)
    size = float(torch.tensor([*abs(c), 0.7]) @ G.norm(dim=1))
    assert float((w.double() - expected).norm()) <= 2 * EXACT[dtype] * size
    for task, row in zip(tasks, rows, strict=True):
        close(factored.gradient(p, task), row, dtype)


def close(found, expected, dtype):
    error = float((found.double() - expected.double()).norm())
    assert error <= EXACT[dtype] * max(float(expected.double().norm()), 1e-20)


def classify(model, sizes, width=12, dtype=torch.float32, classes=4):
    """One loss per task with the given batch sizes, the new task last."""
    tasks = [*range(len(sizes) - 1), None]
    batches = [(torch.randn(n, width, dtype=dtype), torch.randint(classes, (n,))) for n in sizes]
    return {
        task: lambda x=x, y=y: F.cross_entropy(model(x), y)
        for task, (x, y) in zip(tasks, batches, strict=True)
    }


def mlp(dtype=torch.float32, **options):
    layers = [nn.Linear(12, 9, **options), nn.Tanh(), nn.Linear(9, 8, **options), nn.Tanh()]
    return nn.Sequential(*layers, nn.Linear(8, 4, **options)).to(dtype)
