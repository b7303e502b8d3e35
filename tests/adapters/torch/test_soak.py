"""Many steps with growing tasks and changing models leave no memory behind."""

import gc
import weakref

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch_reference import mlp

import gradproj as gp
from gradproj.adapters.torch import EpisodicMemory, Projector


def loss(model, x, y):
    return cross_entropy(model(x), y)


def living_tensors():
    gc.collect()
    return sum(type(each) in (torch.Tensor, nn.Parameter) for each in gc.get_objects())


def test_no_tensor_outlives_its_use():
    model = mlp(16, 16, 10)
    projector = Projector(model, gp.Decomposed(rank=3, strength=0.1), engine="loop")
    x, y = torch.randn(200, 16), torch.randint(10, (200,))
    counts, retired = [], []
    for cycle in range(4):
        memory = EpisodicMemory(8, "reservoir", seed=cycle)
        retired.append(weakref.ref(model[2].weight))
        model[2] = nn.Linear(16, 10)  # the buffer is laid out again, and the old one freed
        optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
        for step in range(100):
            batch = torch.randint(200, (10,))
            old = [memory.sample(t, 4) for t in memory.tasks if t != step // 20]
            optimizer.zero_grad()
            projector.backward_batches(loss, (x[batch], y[batch]), old)
            optimizer.step()
            memory.add(step // 20, x[batch], y[batch])
        counts.append(living_tensors())
    assert len(set(counts[1:])) == 1, counts
    assert all(each() is None for each in retired)


@pytest.mark.parametrize("method", [gp.Decomposed(rank=3, strength=0.1), gp.AGEM()], ids=repr)
def test_many_steps_do_not_grow(method):
    resource = pytest.importorskip("resource", reason="this system cannot measure memory")
    model = mlp(8, 8, 4)
    optimizer = torch.optim.SGD(model.parameters(), 0.001)
    projector = Projector(model, method)
    x, y = torch.randn(5, 6, 8), torch.randint(4, (5, 6))
    new, *old = zip(x, y, strict=True)
    sizes, counts = [], []
    for step in range(2_000):
        optimizer.zero_grad(set_to_none=step % 2 == 0)
        projector.backward_batches(loss, new, old[: 1 + step % 4])
        optimizer.step()
        if step % 500 == 499:
            counts.append(living_tensors())
            sizes.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)  # KiB on Linux
    assert len(set(counts)) == 1, counts
    assert sizes[-1] - sizes[0] < 4096, sizes
